"""One knob of the configuration: its flag, its type and its range."""

from __future__ import annotations

from dataclasses import Field, field
from enum import StrEnum
from typing import Any

from sglang_prefill_ext.errors import ConfigError

KNOB_PREFIX = "prefill_only_"

_SWITCHES = {"true": "on", "false": "off"}
"""What YAML makes of `on` and `off`."""


def new_knob(default: Any, text: str, *, least: int = 1) -> Any:
    """A field with the help of its flag, and the least value of a number."""
    return field(default=default, metadata={"help": text, "least": least})


def kind_of(knob: Field[Any]) -> type:
    """The type of a knob's values; a knob whose default is None is a number."""
    return int if knob.default is None else type(knob.default)


def checked(knob: Field[Any], value: Any) -> Any:
    """Return the value that a knob has if a user gives this one.

    Raises:
        ConfigError: the value is of another type, or out of range.
    """
    kind = kind_of(knob)
    if value is None and knob.default is None:
        return value
    if issubclass(kind, StrEnum):
        told = _SWITCHES.get(str(value).lower(), value)
        if told in list(kind):
            return kind(told)
        range_text = f"one of {', '.join(kind)}"
    elif kind is str:
        if isinstance(value, str):
            return value
        range_text = "a path"
    else:
        least = knob.metadata["least"]
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        range_text = f"a whole number of at least {least}"
    raise ConfigError(
        f"{flag_name(knob.name)} must be {range_text}, got {value!r}. "
        f"Leave it out for the default of {shown_default(knob)}."
    )


def shown_default(knob: Field[Any]) -> str:
    if knob.default is None:
        return "auto"
    return "none" if knob.default == "" else str(knob.default)


def flag_name(field_name: str) -> str:
    """``max_items`` -> ``--prefill-only-max-items``."""
    return "--" + (KNOB_PREFIX + field_name).replace("_", "-")
