"""Reads single settings of a `config.json`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

Settings: TypeAlias = dict[str, Any]


def size_of(config: Settings, name: str) -> int:
    """Read a size; raises KeyError if it is missing, ValueError if it is no whole number > 0."""
    size = config[name]
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"{name} is {size!r:.80}")
    return size


def first_of(config: Settings, *names: str) -> int:
    """Read a size that model families name differently; raises as `size_of` with the last name."""
    return size_of(config, next((name for name in names if name in config), names[-1]))


def number_of(config: Settings, names: Iterable[str]) -> int:
    """The value of a setting that model families name differently; 0 if there is none."""
    return next((int(config[name]) for name in names if config.get(name)), 0)
