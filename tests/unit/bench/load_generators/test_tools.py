from __future__ import annotations

import sys

import pytest

from bench.http_client import LoadError
from bench.load import Measurement
from bench.load_generators.tools import counting_cpu, outputs


def program(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_programs_run_side_by_side_and_their_time_is_counted() -> None:
    seen = Measurement()
    with counting_cpu(seen):
        texts = outputs([program(f"print({n} + sum(range(10**6)) * 0)") for n in range(3)])
    assert texts == ["0\n", "1\n", "2\n"]
    assert seen.generator_cpu_s > 0.01


def test_a_program_that_fails_is_an_error_with_its_last_words() -> None:
    with pytest.raises(LoadError, match="ended with 3: no route"):
        outputs([program("print('fine')"), program("print('no route'); raise SystemExit(3)")])
