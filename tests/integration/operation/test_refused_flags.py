"""Flags that cannot work are refused before a model is loaded, with a helpful message."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sglang_prefill_ext.config import PrefillOnlyConfig, Switch
from tests.integration.support.own_server import run_forked, run_script

pytestmark = pytest.mark.timeout(900)

CONFIGURATION = Path(__file__).parents[3] / "docs" / "configuration.md"
SCHEDULER_STEP = "sglang.srt.managers.scheduler.Scheduler.get_next_batch_to_run"
FLAG_CHECK = "sglang.srt.server_args.ServerArgs.check_server_args"
ENABLE = ["--enable-prefill-only"]

COMBINATIONS: dict[str, list[str]] = {
    "--pp-size": ["--pp-size", "2"],
    "--attn-dp-size": ["--tp-size", "2", "--attn-dp-size", "2"],
    "--enable-dp-attention": ["--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"],
    "--attn-cp-size": ["--tp-size", "2", "--attn-cp-size", "2"],
    "--dcp-size": ["--tp-size", "2", "--dcp-size", "2"],
    "--moe-a2a-backend": ["--tp-size", "2", "--moe-a2a-backend", "deepep"],
    "--moe-dense-tp-size": ["--tp-size", "2", "--moe-dense-tp-size", "1"],
    "--enable-layernorm-sp": ["--tp-size", "2", "--enable-layernorm-sp"],
    "--use-ray": ["--use-ray"],
    "--nnodes": ["--tp-size", "2", "--nnodes", "2", "--dist-init-addr", "127.0.0.1:9"],
    "--disaggregation-mode": ["--disaggregation-mode", "decode"],
    "--disaggregation-mode prefill": [
        *("--disaggregation-mode", "prefill", "--prefill-only-schedulers", "2")
    ],
    "--enable-pd-role-switch": ["--disaggregation-mode", "prefill", "--enable-pd-role-switch"],
    "--enable-pdmux": [
        *("--enable-pdmux", "--disable-overlap-schedule", "--chunked-prefill-size", "-1")
    ],
    "--smg-grpc-mode": ["--smg-grpc-mode"],
    "SGLANG_RUST_SERVER": [],
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": [],
    "--tokenizer-worker-num": ["--prefill-only-attach", "x", "--tokenizer-worker-num", "2"],
    "--admin-api-key": ["--admin-api-key", "key", "--tokenizer-worker-num", "2"],
}
"""What is refused beside the flag, by its name in the documentation."""

SCHEDULERS = ["--prefill-only-schedulers", "2"]
ONE_DEVICE = {
    "--dp-size": ["--dp-size", "2"],
    "--tp-size": ["--tp-size", "4"],
}
"""What asks for more devices than the one that several schedulers share."""

KNOBS = {
    "--prefill-only-max-items": "0",
    "--prefill-only-max-forward-tokens": "-5",
    "--prefill-only-gather-rows": "-1",
}


def cases(model: Path, yaml: Path) -> dict[str, dict[str, Any]]:
    argv = ["--model-path", str(model), "--device", "cpu", "--max-total-tokens", "4096"]
    enabled = argv + ENABLE
    variables = [name for name in COMBINATIONS if name.startswith("SGLANG_")]
    return {
        **{name: {"argv": enabled + flags} for name, flags in COMBINATIONS.items()},
        **{name: {"argv": enabled, "env": {name: "1"}} for name in variables},
        **{
            f"two, {name}": {"argv": enabled + SCHEDULERS + more}
            for name, more in ONE_DEVICE.items()
        },
        "two, cores": {"argv": [*enabled, *SCHEDULERS, "--prefill-only-scheduler-cores", "9999"]},
        "two, slots": {"argv": [*enabled, *SCHEDULERS, "--max-total-tokens", "1"]},
        **{knob: {"argv": [*enabled, knob, value]} for knob, value in KNOBS.items()},
        "no number": {"argv": [*enabled, "--prefill-only-max-items", "many"]},
        "no device": {"argv": ["--model-path", str(model), *ENABLE]},
        "knob alone": {"argv": [*argv, "--prefill-only-max-items", "5"]},
        "changed, on": {"argv": enabled, "changed": SCHEDULER_STEP},
        "changed, off": {"argv": argv, "changed": SCHEDULER_STEP, "parse_only": True},
        "flags changed, on": {"argv": enabled, "changed": FLAG_CHECK},
        "flags changed, off": {"argv": argv, "changed": FLAG_CHECK, "parse_only": True},
        "config file": {"argv": ["--config", str(yaml)], "parse_only": True},
        "help": {"argv": ["--help"], "parse_only": True},
    }


@pytest.fixture(scope="module")
def outcomes(
    model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """How each start ended, by case."""
    directory, model = tmp_path_factory.mktemp("launch"), model_dir("micro")
    yaml, asked, out = (directory / name for name in ("server.yaml", "cases.json", "out.json"))
    yaml.write_text(
        f"model-path: {model}\ndevice: cpu\nenable-prefill-only: true\nprefill-only-max-items: 7\n"
        "prefill-only-known-answers: off\n"
    )
    asked.write_text(json.dumps(cases(model, yaml)))
    run_script("launch_runner", asked, out)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def documented() -> dict[str, str]:
    """Reason by flag, from the table of refused combinations."""
    _, _, section = CONFIGURATION.read_text().partition("## Refused at start")
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", section, flags=re.MULTILINE)
    names = re.compile(r"`(--[a-z0-9-]+|SGLANG_[A-Z_]+)`?")
    return {name: why for left, why in rows for name in names.findall(left)}


def test_every_documented_combination_is_tried() -> None:
    assert set(documented()) == {name.partition(" ")[0] for name in COMBINATIONS}


@pytest.mark.patch("P04")
@pytest.mark.parametrize("name", COMBINATIONS)
def test_impossible_combinations(outcomes: dict[str, Any], name: str) -> None:
    outcome = outcomes[name]
    message = outcome["exit"]
    assert isinstance(message, str), outcome
    flag = "--attn-dp-size" if name == "--enable-dp-attention" else name
    assert f"--enable-prefill-only cannot be combined with {flag}" in message
    assert "Remove either" in message
    assert outcome["children"] == []  # no process was started that could load a model


@pytest.mark.parametrize("flag", ONE_DEVICE)
def test_several_schedulers_share_one_device(outcomes: dict[str, Any], flag: str) -> None:
    message = outcomes[f"two, {flag}"]["exit"]
    size = ONE_DEVICE[flag][1]
    assert f"--prefill-only-schedulers 2 cannot be combined with {flag} {size}" in message
    assert "Leave out either" in message


def test_several_schedulers_need_cores_and_slots(outcomes: dict[str, Any]) -> None:
    assert "--prefill-only-scheduler-cores 9999 needs 19998" in outcomes["two, cores"]["exit"]
    assert "--max-total-tokens 1 leaves nothing" in outcomes["two, slots"]["exit"]


@pytest.mark.parametrize("knob", KNOBS)
def test_knobs_out_of_range(outcomes: dict[str, Any], knob: str) -> None:
    assert outcomes[knob]["exit"].startswith(f"{knob} must be a whole number of at least 1")
    assert f"got {KNOBS[knob]}" in outcomes[knob]["exit"]
    assert "Leave it out for the default" in outcomes[knob]["exit"]


def test_a_knob_that_is_no_number(outcomes: dict[str, Any]) -> None:
    assert outcomes["no number"]["exit"] == 2
    assert "--prefill-only-max-items: invalid int value: 'many'" in outcomes["no number"]["output"]


def test_a_knob_without_the_flag(outcomes: dict[str, Any]) -> None:
    message = outcomes["knob alone"]["exit"]
    assert "--prefill-only-max-items has no effect without --enable-prefill-only" in message


def test_a_machine_without_a_gpu_needs_a_device(outcomes: dict[str, Any]) -> None:
    message = outcomes["no device"]["exit"]
    assert message.startswith("SGLang finds no GPU here.")
    assert "--device cpu" in message


def test_a_changed_sglang_is_refused(outcomes: dict[str, Any]) -> None:
    message = outcomes["changed, on"]["exit"]
    assert message.startswith("--enable-prefill-only cannot be honoured.")
    assert f"P11 {SCHEDULER_STEP}: signature differs" in message
    assert "expected: (self, running_batch, last_batch)" in message
    assert "found:    (self, something_else)" in message
    assert "remedy:" in message


@pytest.mark.parametrize("name", ["changed, off", "flags changed, off"])
def test_a_changed_sglang_starts_without_the_flag(outcomes: dict[str, Any], name: str) -> None:
    assert outcomes[name]["exit"] is None
    assert outcomes[name]["config"] is None
    assert "error" not in outcomes[name]


def test_flags_that_cannot_be_added_are_unknown(outcomes: dict[str, Any]) -> None:
    outcome = outcomes["flags changed, on"]
    assert outcome["exit"] == 2
    assert "unrecognized arguments: --enable-prefill-only" in outcome["output"]


@pytest.mark.patch("P02")
def test_the_configuration_file(outcomes: dict[str, Any]) -> None:
    assert outcomes["config file"]["config"] == asdict(
        PrefillOnlyConfig(max_items=7, known_answers=Switch.OFF)
    )


def test_the_exit_status_and_stderr_of_a_real_start(model_dir: Callable[[str], Path]) -> None:
    flags = ("--model-path", str(model_dir("micro")), "--device", "cpu", *ENABLE, "--pp-size", "2")
    run = run_forked([sys.executable, "-m", "sglang.launch_server", *flags])
    assert run.returncode == 1
    assert "--enable-prefill-only cannot be combined with --pp-size 2" in run.stderr


@pytest.mark.patch("P01")
def test_help_lists_the_flags(outcomes: dict[str, Any]) -> None:
    outcome = outcomes["help"]
    assert outcome["exit"] == 0
    assert "--enable-prefill-only" in outcome["output"]
    for knob in KNOBS:
        assert f"{knob} N" in outcome["output"]
