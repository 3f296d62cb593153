"""What takes the place of `MeasuredServer`: the stand-in, behaving by the server's flags."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tests.unit.bench.stand_in import StandIn


class Servers:
    """Call it as `MeasuredServer`; `started` keeps the flags of every server."""

    def __init__(self, stand_in: StandIn) -> None:
        self.started: list[list[str]] = []
        self._stand_in = stand_in

    def __call__(self, model: Path, args: Sequence[str], env: object, log_path: Path) -> Running:
        self.started.append(list(args))
        return Running(self._stand_in, "--enable-prefill-only" in args)


class Running:
    pids: ClassVar[list[int]] = []

    def __init__(self, stand_in: StandIn, is_extension: bool) -> None:
        self.port = stand_in.port
        stand_in.shift = stand_in.extension_shift if is_extension else 0.0
        stand_in.id_shift = stand_in.extension_id_shift if is_extension else 0
        stand_in.counts_packed = is_extension and not stand_in.declines

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass
