from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.moe.blocks import Entry
from sglang_prefill_ext.moe.policy import BlockTime
from sglang_prefill_ext.moe.times import (
    Sample,
    file_of,
    fitted,
    measured_times,
    read_times,
    write_times,
)

TIMES = {Entry(2048, 128): BlockTime(1e-5, 2e-9), Entry(512, 64): BlockTime(0.0, 3e-9)}


@given(st.floats(0, 1e-3), st.floats(1e-9, 1e-6))
def test_a_line_is_found_again(fixed_s: float, row_s: float) -> None:
    found = fitted(*(Sample(rows, fixed_s + row_s * rows) for rows in (1000, 4000)))
    assert found.row_s == pytest.approx(row_s, rel=1e-6)
    assert found.fixed_s == pytest.approx(fixed_s, abs=1e-9)


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_clock_that_errs_makes_no_row_free(few_s: float, many_s: float) -> None:
    found = fitted(Sample(10, few_s), Sample(40, many_s))
    assert found.row_s > 0
    assert found.fixed_s >= 0
    assert fitted(Sample(10, 2.0), Sample(40, 1.0)) == BlockTime(0.0, 1.0 / 40)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = file_of(tmp_path / "very" / "new", "this device")
    assert read_times(file, "this device") == {}
    for times in ({}, TIMES):
        write_times(file, "this device", times)
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert read_times(file, "this device") == TIMES
    assert [each.name for each in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    "text",
    [
        '{"about": "another device", "times": [[2048, 128, 0.0, 1.0]]}',
        '{"about": "this device", "times": [[2048, 128, 0.0, 0.0], [512, 64, 0.0, 1.0]]}',
        '{"about": "this device", "times": [[2048, 128, -1.0, 1.0]]}',
        '{"about": "this device", "times": [[2048, 128]]}',
        '{"about": "this device"',
    ],
    ids=["another device", "free rows", "less than nothing", "too short", "torn"],
)
def test_what_is_no_table_of_this_device_is_measured_again(tmp_path: Path, text: str) -> None:
    file = tmp_path / "times.json"
    file.write_text(text)
    assert read_times(file, "this device") == {}


def test_a_file_is_of_one_device_and_shape(tmp_path: Path) -> None:
    assert file_of(tmp_path, "H100, E=128") != file_of(tmp_path, "H200, E=128")


def test_every_expert_fills_whole_blocks_of_every_entry() -> None:
    asked: list[tuple[Entry, int]] = []

    def seconds_of(entry: Entry, rows: int) -> float:
        asked.append((entry, rows))
        return 1e-5 + 1e-9 * 8 * rows

    found = measured_times([*TIMES], 8, seconds_of)
    assert asked == [(entry, rows) for entry in TIMES for rows in (128, 512)]
    assert [time.row_s for time in found.values()] == pytest.approx([1e-9, 1e-9])


def test_an_entry_that_fails_is_left_out_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    def seconds_of(entry: Entry, rows: int) -> float:
        if entry.block == 64:
            raise RuntimeError("out of shared memory")
        return float(rows)

    assert list(measured_times([*TIMES], 8, seconds_of)) == [Entry(2048, 128)]
    assert "blocks of 64 rows are left out: out of shared memory" in caplog.text
