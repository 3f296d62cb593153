"""Reads single settings of a `config.json`. Pure."""

from __future__ import annotations

from typing import Any, TypeAlias

Settings: TypeAlias = dict[str, Any]


def size_of(config: Settings, name: str) -> int:
    """Read a size; raises KeyError if it is missing, ValueError if it is no whole number > 0."""
    size = config[name]
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"{name} is {size!r:.80}")
    return size


def number_of(config: Settings, *names: str) -> int:
    """The first of these settings that is set; 0 if none is. Raises ValueError as `size_of`."""
    return next((size_of(config, name) for name in names if config.get(name)), 0)


def first_of(config: Settings, *names: str) -> int:
    """Read a size that model families name differently; raises as `size_of` with the last name."""
    return number_of(config, *names) or size_of(config, names[-1])
