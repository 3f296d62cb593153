from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sglang_prefill_ext.shared_device.board import BOARD_VARIABLE, Board


def test_a_new_board_is_empty() -> None:
    board = Board.create(3)
    assert (board.kv_bytes, board.reserve_bytes) == (0, 0)
    assert board.done.tolist() == [0, 0, 0]


def test_what_one_opening_writes_the_others_read() -> None:
    board = Board.create(2)
    other = Board(board.path, 2)
    done = board.done
    other.set_shares(5 << 40, 6)
    other.done[1] += 7
    assert (board.kv_bytes, board.reserve_bytes) == (5 << 40, 6)
    assert done.tolist() == [0, 7]


def test_another_process_finds_the_board_by_its_environment() -> None:
    board = Board.create(2)
    code = (
        "from sglang_prefill_ext.shared_device.board import Board\n"
        "board = Board.found(2)\n"
        "board.done[0] += 41\n"
        "board.set_shares(9, 1)\n"
    )
    environment = {**os.environ, BOARD_VARIABLE: board.path}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert (board.kv_bytes, board.done.tolist()) == (9, [41, 0])


def test_a_board_that_is_not_there() -> None:
    with pytest.raises(OSError, match="No such file"):
        Board("/proc/self/fd/999999", 2)
