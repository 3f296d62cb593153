from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.fleet import engines
from bench.fleet.engines import engine, engines_on, router
from sglang_prefill_ext.errors import ServerStartError


@dataclass
class Started:
    """A server that only says how it would have been started."""

    command: list[str]
    port: int

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_engines_have_the_plugin_and_a_core_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Started] = []

    def start(model: Path, name: str, *flags: str) -> Started:
        started.append(Started(engine(model, name, *flags).command, len(started)))
        return started[-1]

    monkeypatch.setattr(engines, "engine", start)
    with engines_on(tmp_path / "model", [1, 0], str, "--max-total-tokens", "9") as ports:
        assert ports == [0, 1]
    for each, core in zip(started, "10", strict=True):
        assert each.command[:3] == ["taskset", "--cpu-list", core]
        assert "--enable-prefill-only" in each.command
        assert each.command[-2:] == ["--max-total-tokens", "9"]


def test_a_router_without_its_engines_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_READY_S", 0.0)
    with pytest.raises(ServerStartError, match="router over http://127"), router([1]):
        pass
