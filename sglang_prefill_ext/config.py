"""The one configuration of the extension; command line, `Engine(...)` and children share it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from sglang_prefill_ext.errors import ConfigError

ENABLE_FIELD = "enable_prefill_only"
KNOB_PREFIX = "prefill_only_"


@dataclass(frozen=True, slots=True)
class PrefillOnlyConfig:
    """Knobs of the packed path; every field is a flag ``--prefill-only-<name>``.

    Raises:
        ConfigError: a value is out of its range.
    """

    max_forward_tokens: int = field(
        default=16384,
        metadata={
            "help": "Most tokens of one packed forward; a larger request takes several forwards "
            "that share the K/V of its prefix."
        },
    )
    max_items: int = field(
        default=10000,
        metadata={"help": "Most items of one scoring request; a larger one gets HTTP 400."},
    )
    readout_chunk_mib: int = field(
        default=64,
        metadata={
            "help": "Memory (MiB) for full-vocabulary logits during the read-out; rows are read in "
            "chunks that fit."
        },
    )

    def __post_init__(self) -> None:
        for knob in fields(self):
            value = getattr(self, knob.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"{flag_name(knob.name)} must be a whole number of at least 1, got {value!r}. "
                    f"Leave it out for the default of {knob.default}."
                )


def flag_name(field_name: str) -> str:
    """``max_items`` -> ``--prefill-only-max-items``."""
    return "--" + (KNOB_PREFIX + field_name).replace("_", "-")


def config_from_mapping(values: dict[str, Any]) -> PrefillOnlyConfig | None:
    """Build the configuration from parsed flags or `Engine` keyword arguments.

    Args:
        values: may hold ``enable_prefill_only`` and ``prefill_only_<knob>`` keys; None means
            that a knob was not given. Other keys are ignored.

    Returns:
        None if prefill-only serving was not enabled.

    Raises:
        ConfigError: a knob is out of range, or given although the extension is not enabled.
    """
    given = {
        knob.name: values[KNOB_PREFIX + knob.name]
        for knob in fields(PrefillOnlyConfig)
        if values.get(KNOB_PREFIX + knob.name) is not None
    }
    if not values.get(ENABLE_FIELD):
        if given:
            name = flag_name(next(iter(given)))
            raise ConfigError(f"{name} has no effect without --enable-prefill-only; add that flag.")
        return None
    return PrefillOnlyConfig(**given)
