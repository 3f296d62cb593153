from __future__ import annotations

import pytest

from bench.load_generators.__main__ import require_tools
from bench.load_generators.wires import Wire
from bench.workloads import ClosedLoop, OpenLoop
from sglang_prefill_ext.errors import ConfigError


def test_there_is_no_open_loop_over_grpc() -> None:
    rate = OpenLoop(5.0, relative=False)
    require_tools([ClosedLoop(8)], list(Wire))
    require_tools([rate], [Wire.IDS, Wire.TEXT])
    with pytest.raises(ConfigError, match="leave out --wire grpc or the rate"):
        require_tools([ClosedLoop(8), rate], [Wire.GRPC])
