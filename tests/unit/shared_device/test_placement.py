from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.shared_device.placement import Placement, core_groups, doubts, usable_cores

ON_MPS = Placement(
    pid=1,
    cores=[0, 1, 2, 3],
    visible_devices="0",
    mps=True,
    mps_directory="/x",
    mps_thread_percentage=None,
)


def test_this_process(tmp_path: Path) -> None:
    (tmp_path / "control").touch()
    environment = {
        "CUDA_VISIBLE_DEVICES": "3",
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
    }
    found = Placement.of_this_process(environment)
    assert found == Placement(os.getpid(), usable_cores(), "3", True, str(tmp_path), "50")
    assert found.cores


def test_a_directory_without_a_daemon_is_no_mps(tmp_path: Path) -> None:
    found = Placement.of_this_process({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})
    assert (found.mps, found.visible_devices, found.mps_thread_percentage) == (False, None, None)


@pytest.mark.parametrize(
    ("placement", "device", "words"),
    [
        (ON_MPS, "cuda", []),
        (replace(ON_MPS, mps=False), "cuda", ["nvidia-cuda-mps-control -d"]),
        (replace(ON_MPS, cores=[0, 1]), "cuda", ["2 schedulers and a front end share 2 cores"]),
        (replace(ON_MPS, mps=False), "cpu", ["On a CPU"]),
        (replace(ON_MPS, mps=False, cores=[5]), "cpu", ["On a CPU", "share 1 cores"]),
    ],
)
def test_doubts(placement: Placement, device: str, words: list[str]) -> None:
    found = list(doubts(placement, device, 2))
    assert len(found) == len(words)
    for doubt, word in zip(found, words, strict=True):
        assert word in doubt


@given(
    cores=st.sets(st.integers(0, 200), min_size=1, max_size=64).map(sorted),
    schedulers=st.integers(1, 16),
)
def test_cores_are_divided_evenly(cores: list[int], schedulers: int) -> None:
    groups = core_groups(cores, schedulers)
    assert len(groups) == schedulers
    assert len({len(group) for group in groups}) == 1
    assert groups[0]
    used = [core for group in groups for core in group]
    assert set(used) <= set(cores)
    if len(cores) >= schedulers:
        assert len(used) == len(set(used)) > len(cores) - schedulers
    else:
        assert set(used) == set(cores)


def test_so_many_for_each() -> None:
    assert core_groups([2, 3, 5, 7, 8], 2, 2) == [[2, 3], [5, 7]]
    assert core_groups([2, 3, 5, 7], 2, 2) == [[2, 3], [5, 7]]
    assert core_groups([2, 3, 5, 7], 2, 1) == [[2], [3]]


def test_more_than_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        core_groups([0, 1, 2], 2, 2)
    assert "--prefill-only-scheduler-cores 2 needs 4 cores for 2 schedulers" in str(caught.value)
    assert "Give fewer" in str(caught.value)
