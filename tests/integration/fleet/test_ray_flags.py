"""Flags of SGLang that a fleet on Ray is given are read by SGLang before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.fleet.ray_serve import run
from sglang_prefill_ext.fleet.ray_serve.launch import Launch
from tests.integration.support.own_server import run_forked


@pytest.fixture(autouse=True)
def _imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.subprocess, "run", lambda command, **_how: run_forked(command))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tp-sise", "2"], "unrecognized arguments: --tp-sise 2"),
        (["--prefill-only-max-items", "0"], "--prefill-only-max-items must be a whole number"),
        (["--use-ray"], "--use-ray: an engine of a fleet"),
    ],
)
def test_flags_that_sglang_refuses_are_told_in_its_words(flags: list[str], words: str) -> None:
    asked = Launch("/no/model", tuple(flags))
    with pytest.raises(ConfigError, match="SGLang refuses the flags of the engines") as told:
        run._checked(asked)
    assert words in str(told.value)
    assert "usage:" not in str(told.value)
    assert "`python -m sglang.launch_server --help` lists them all" in str(told.value)


def test_what_a_fleet_knows_of_the_flags_of_its_engines(tmp_path: Path) -> None:
    yaml = tmp_path / "engine.yaml"
    yaml.write_text("tp-size: 4\ndevice: cuda\n")
    launch = Launch("/no/model", ("--config", str(yaml), "--dp-size", "2"))
    found = run._checked(launch)
    assert (found.device, found.ranks) == ("cuda", 8)
