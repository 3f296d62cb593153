from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sglang_prefill_ext import cli
from sglang_prefill_ext.errors import ConfigError

CONFIG = {
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
}
MEASURED = "--tokens-per-s 100 --launch-ms 5 --link-gb-s 1 --link-us 0"

Plan = Callable[..., str]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Runs the command with further flags; returns what it prints."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    def run(flags: str, status: int = 0) -> str:
        done = CliRunner().invoke(cli.app, ["plan", str(tmp_path), *flags.split()])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == status, done.output
        return done.output

    return run


def test_every_division_is_a_line_and_the_best_is_first(plan: Plan) -> None:
    lines = plan("--gpus 4 --shape 100+400x16").splitlines()
    assert lines[0].rstrip() == "100+400x16, 1 client, 4 x h100-sxm; times in ms"
    names = "latency idle parts most /s GB launch metic memory reduce"
    assert [" ".join(line.split()) for line in lines[1:3]] == ["arith- all-", names]
    assert [line[:7] for line in lines if line[1:4] == " x "] == ["4 x TP1", "2 x TP2", "1 x TP4"]
    assert any(line.startswith("Take 4 x TP1: ") for line in lines)


def test_a_narrow_terminal_shows_every_number(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = [line.split() for line in plan("").splitlines() if line[1:4] == " x "]
    monkeypatch.setenv("COLUMNS", "40")
    narrow = [line.split() for line in plan("").splitlines() if line[1:4] == " x "]
    assert narrow == wide
    assert len(narrow) == 3


def test_what_does_not_fit_is_named_below(plan: Plan) -> None:
    output = plan("--gpus 2 --memory-gb 16")
    assert "2 x TP1 does not fit: weights take 16.4 GB" in output
    assert "Take 1 x TP2" in output


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--memory-gb 1", "Nothing fits: "),
        ("--rate 1000000", "No division serves 1e+06 requests/s"),
    ],
)
def test_the_exit_status_tells_that_no_way_is_good_enough(
    plan: Plan, flags: str, told: str
) -> None:
    assert told in plan(flags, status=1)


def test_what_is_given_replaces_what_is_listed(plan: Plan) -> None:
    assert plan("--device l40s") != plan("")
    assert plan("--tflops 500") != plan("")
    assert "2 requests/s" in plan("--rate 2")


def test_a_device_without_an_entry_has_its_speed_given(plan: Plan) -> None:
    output = plan(f"--gpus 2 --device cpu {MEASURED}")
    assert "2 x cpu" in output
    assert "Take 2 x TP1" in output or "Take 1 x TP2" in output


def test_a_single_device_needs_no_link(plan: Plan) -> None:
    alone = "--gpus 1 --device cpu --tokens-per-s 100 --launch-ms 5"
    assert "Take 1 x TP1" in plan(alone)
    assert plan(alone) == plan(f"{alone} --link-gb-s 1 --link-us 7")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--gpus 0", "--gpus 0: give 1 or more"),
        ("--shape 60", "shape '60': write <query>"),
        ("--device tpu", "--device 'tpu': use one of h100-sxm"),
        ("--device cpu --link-us 1", "add --tokens-per-s, --launch-ms, --link-gb-s"),
        ("--tokens-per-s 5", "--tokens-per-s 5: it has no effect with --device h100-sxm"),
        ("--device cpu --tflops 5", "--tflops 5: it has no effect with --device cpu"),
        ("--tflops 0", "--tflops 0: give a number above 0"),
        (f"--device cpu {MEASURED} --tokens-per-s -1", "--tokens-per-s -1: give a number above 0"),
        ("--clients 0", "--clients 0: give 1 or more"),
        ("--launch-ms inf", "--launch-ms inf: give a finite number"),
        ("--link-us inf", "--link-us inf: give a finite number"),
        ("--launch-ms 1e10", "--launch-ms 1e[+]10: give a number from 0 to 1e[+]09"),
        ("--link-us 1e308", "--link-us 1e[+]308: give a number from 0 to 1e[+]09"),
        ("--tflops inf", "--tflops inf: give a finite number"),
        (f"--device cpu {MEASURED} --tokens-per-s inf", "--tokens-per-s inf: give a finite number"),
        ("--tflops 1e-320", "--tflops 9.99989e-321: give a number from 1e-30 to 1e[+]30"),
        ("--link-gb-s 1e-320", "--link-gb-s 9.99989e-321: give a number from"),
        (f"--device cpu {MEASURED} --tokens-per-s 1e300", "--tokens-per-s 1e[+]300: give a number"),
        (f"--device cpu {MEASURED} --tokens-per-s 1e-300", "--tokens-per-s 1e-300: give a number"),
        (f"--shape 1+1x{10**20}", "with at most seven digits each"),
    ],
)
def test_wrong_flags_are_named_with_a_remedy(plan: Plan, flags: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(flags)


@pytest.mark.parametrize(
    "flag", [f"--clients={10**400}", f"--weight-bytes={10**400}", "--expert-imbalance=inf"]
)
def test_numbers_that_no_fleet_has_are_wrong_usage(plan: Plan, flag: str) -> None:
    assert flag.partition("=")[0] in plan(flag, status=2)
