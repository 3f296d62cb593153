from __future__ import annotations

import io
import json
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from sglang_prefill_ext import SUPPORTED_SGLANG
from sglang_prefill_ext.patching import doctor, guard, scan
from sglang_prefill_ext.patching.doctor import Status
from sglang_prefill_ext.patching.spec import Patch, Use
from tests.unit.patching.stub_sglang import (
    MODULE,
    OWNER,
    known_body,
    scheduler_use,
    step_patch,
    wait_use,
)

pytestmark = pytest.mark.usefixtures("upstream")

DRIFTED = step_patch(id="T2", fingerprints={"0.5.22": "0" * 64})
WRONG = step_patch(id="T3", signature="(self)")


@pytest.fixture(autouse=True)
def _version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "installed_version", lambda name="sglang": "0.5.23")


def diagnose(
    patches: Sequence[Patch], uses: Sequence[Use] = (), libraries: Sequence[Use] = ()
) -> doctor.Report:
    """`doctor.diagnose` without uses by default; its own default are those of the real SGLang."""
    return doctor.diagnose(patches, uses, libraries)


def text_of(report: doctor.Report, width: int = 60, *, everything: bool = False) -> str:
    output = io.StringIO()
    doctor.render(report, Console(file=output, width=width), everything=everything)
    return output.getvalue()


def test_each_patch_has_its_status(upstream: ModuleType) -> None:
    fits = step_patch(fingerprints=known_body(upstream))
    report = diagnose([fits, DRIFTED, WRONG])
    assert [e.status for e in report.patches] == [Status.OK, Status.DRIFT, Status.MISMATCH]
    assert not report.ok


def test_drift_alone_is_not_a_failure() -> None:
    report = diagnose([DRIFTED])
    assert report.ok
    assert "body differs" in text_of(report)
    assert "would start" in text_of(report)


def test_a_mismatch_is_shown_in_full_however_narrow_the_terminal() -> None:
    report = diagnose([WRONG])
    (mismatch,) = report.mismatches
    assert str(mismatch) in text_of(report)
    assert "would refuse to start" in text_of(report)


def test_what_a_signature_has_in_brackets_is_shown() -> None:
    wrong = step_patch(signature="(self, batch=[bold])")
    assert "expected: (self, batch=[bold])" in text_of(diagnose([wrong]))


def test_what_is_installed_is_shown() -> None:
    text = text_of(diagnose([]), width=120)
    assert "sglang 0.5.23" in text
    assert f"\nsupported SGLang: {SUPPORTED_SGLANG}\n" in text


def test_uses_are_shown_beside_the_patches() -> None:
    report = diagnose([], [scheduler_use(), wait_use(signature="()")])
    assert [entry.status for entry in report.uses] == [Status.OK, Status.MISMATCH]
    assert not report.ok
    for word in ("used, not changed", OWNER, f"{MODULE}.wait", "would refuse to start"):
        assert word in text_of(report, width=120, everything=True)
    assert str(report.mismatches[0]) in text_of(report)


def test_a_used_function_with_another_body_has_drifted() -> None:
    report = diagnose([], [wait_use(body="0" * 16)])
    (entry,) = report.uses
    assert entry.status is Status.DRIFT
    assert report.ok
    text = text_of(report)
    assert f"used {MODULE}.wait: body differs" in text
    assert "remedy:   nothing to do now; compare the two bodies before renewing the lock" in text


def test_who_uses_what_differs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    read = scan.Names(touched={"waiting"})
    imports = scan.Names(imports={f"{MODULE}.wait"})
    modules = {f"{scan.BORDER}.reads": read, f"{scan.PACKAGE}.imports": imports}
    monkeypatch.setattr(scan, "read_package", lambda: modules)
    report = diagnose([], [scheduler_use(members=("queue", "waiting")), wait_use()])
    border = scan.BORDER.partition(".")[2]
    assert [entry.used_by for entry in report.uses] == [(f"{border}.reads",), ("imports",)]


def test_what_fits_is_counted_and_listed_on_demand_only() -> None:
    report = diagnose([step_patch(id="T7"), WRONG], [wait_use()])
    brief = text_of(report, width=120)
    assert "patch: 1 ok, 1 mismatch\n" in brief
    assert "used, not changed: 1 ok\n" in brief
    assert "attention library: none can be imported here\n" in brief
    assert "T3" in brief
    assert "T7" not in brief
    assert wait_use().target not in brief
    for word in ("T7", wait_use().target):
        assert word in text_of(report, width=120, everything=True)


def test_a_library_that_differs_is_shown_and_stops_no_server() -> None:
    missing = wait_use(target="no_such_library.attend")
    report = diagnose([], [], [wait_use(), wait_use(signature="()"), missing])
    assert [entry.status for entry in report.libraries] == [Status.OK, Status.DRIFT]
    assert report.ok
    (mismatch,) = report.mismatches
    assert "leave --prefill-only-attention at auto" in mismatch.remedy
    assert str(mismatch) in text_of(report)
    listed = json.loads(json.dumps(report.to_json()))["libraries"]
    assert [each["status"] for each in listed] == ["ok", "drift"]


def test_a_merged_diff_is_told_and_stops_no_server(
    upstream: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "load_added", lambda: {"0001": [f"{OWNER}.idle"]})
    fits = step_patch(fingerprints=known_body(upstream))
    report = diagnose([fits, step_patch(id="T2", fingerprints={"0.5.22": "0" * 64}), WRONG])
    assert [e.status for e in report.patches] == [Status.MERGED, Status.MERGED, Status.MISMATCH]
    assert diagnose([fits]).ok
    text = text_of(report, width=120)
    assert "patch: 2 merged, 1 mismatch\n" in text
    assert text.count(f"    remedy:   remove the patch, and {fits.hook}, or call it by ") == 3


def test_an_unsupported_version_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "installed_version", lambda name="sglang": "0.7.0")
    report = diagnose([step_patch()])
    assert not report.ok
    assert "found:    0.7.0" in text_of(report)


def test_json_says_the_same() -> None:
    report = json.loads(json.dumps(diagnose([WRONG], [scheduler_use()]).to_json()))
    assert report["ok"] is False
    assert report["supported_sglang"] == SUPPORTED_SGLANG
    assert report["versions"]["sglang"] == "0.5.23"
    (patch,) = report["patches"]
    assert (patch["id"], patch["kind"], patch["status"]) == ("T3", "around", "mismatch")
    used = {"target": OWNER, "groups": ["scheduler"], "used_by": [], "status": "ok"}
    assert report["uses"] == [used]
    (mismatch,) = report["mismatches"]
    assert mismatch["id"] == "T3"
    assert mismatch["aspect"] == "signature"
    assert mismatch["expected"] == "(self)"
    assert mismatch["found"] == "(self, batch, last=None)"
    assert mismatch["remedy"]


@pytest.mark.parametrize(("patch", "status"), [(DRIFTED, 0), (WRONG, 1)])
@pytest.mark.parametrize("json_output", [True, False])
def test_exit_status_and_output(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    patch: Patch,
    status: int,
    json_output: bool,
) -> None:
    report = diagnose([patch])
    monkeypatch.setattr(doctor, "diagnose", lambda: report)
    assert doctor.main(json_output=json_output, everything=False) == status
    printed: Any = capsys.readouterr().out
    if json_output:
        assert json.loads(printed)["ok"] is (status == 0)
    else:
        assert patch.id in printed
