from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, asdict, fields
from enum import StrEnum
from typing import Any

import pytest

from sglang_prefill_ext.config import Order, PrefillOnlyConfig, Switch, config_from_mapping
from sglang_prefill_ext.config.knobs import flag_name, shown_default
from sglang_prefill_ext.errors import ConfigError

CHOICES = {
    knob.name: list(type(knob.default))
    for knob in fields(PrefillOnlyConfig)
    if isinstance(knob.default, StrEnum)
}
PATHS = ["attach"]
NUMBERS = [k.name for k in fields(PrefillOnlyConfig) if k.name not in (*CHOICES, *PATHS)]
KNOBS = [*NUMBERS, *CHOICES, *PATHS]
MEASURED = ("launch_tokens", "decode_step_tokens")
"""Numbers that are measured or estimated at start unless given."""

ZERO = (*MEASURED, "scheduler_cores", "readout_chunk_mib", "timeout_ms")
MAY_BE_ZERO = (*ZERO, "gather_ms", "gc_idle_s", "cuda_graphs")
BY_DEVICE = ("cuda_graphs",)


def test_every_knob_has_a_usable_default_and_a_help_text() -> None:
    for knob in fields(PrefillOnlyConfig):
        value = getattr(PrefillOnlyConfig(), knob.name)
        if knob.name in CHOICES:
            assert value in CHOICES[knob.name]
        elif knob.name in PATHS:
            assert value == ""
        elif knob.name in BY_DEVICE:
            assert value is None
        else:
            assert (value == 0) if knob.name in ZERO else (value >= 1)
        assert knob.metadata["help"].endswith(".")


@pytest.mark.parametrize("knob", [name for name, each in CHOICES.items() if each == list(Switch)])
def test_a_switch_may_be_spelt_as_yaml_spells_it(knob: str) -> None:
    for value, told in {False: "off", "false": "off", True: "on", "true": "on"}.items():
        assert getattr(PrefillOnlyConfig(**{knob: value}), knob) == told


@pytest.mark.parametrize("knob", NUMBERS)
def test_a_knob_out_of_range_is_refused_by_flag_value_and_default(knob: str) -> None:
    (shown,) = [shown_default(one) for one in fields(PrefillOnlyConfig) if one.name == knob]
    wrong: list[Any] = [-1, True, 2.0, "8"]
    taken: list[Any] = [1]
    (taken if knob in MAY_BE_ZERO else wrong).append(0)
    (taken if knob in BY_DEVICE else wrong).append(None)
    for value in taken:
        assert getattr(PrefillOnlyConfig(**{knob: value}), knob) == value
    for value in wrong:
        with pytest.raises(ConfigError) as caught:
            PrefillOnlyConfig(**{knob: value})
        for word in (flag_name(knob), repr(value), f"for the default of {shown}."):
            assert word in str(caught.value)


@pytest.mark.parametrize(
    ("given", "max_forward_tokens", "on_cuda", "ranks", "captured"),
    [
        (None, 16384, True, 1, 16384),
        (None, 1000, True, 1, 1000),
        (None, 16384, True, 2, 0),
        (None, 16384, False, 1, 0),
        (0, 16384, True, 1, 0),
        (64, 16384, False, 1, 64),
        (9000, 16384, True, 1, 9000),
        (64, 16, True, 1, 16),
    ],
)
def test_graphs_are_captured_on_one_gpu_unless_a_number_is_given(
    given: int | None, max_forward_tokens: int, on_cuda: bool, ranks: int, captured: int
) -> None:
    config = PrefillOnlyConfig(cuda_graphs=given, max_forward_tokens=max_forward_tokens)
    assert config.graph_tokens(on_cuda=on_cuda, ranks=ranks) == captured


@pytest.mark.parametrize("knob", CHOICES)
def test_a_knob_takes_the_words_of_its_choices_and_no_other(knob: str) -> None:
    for choice in CHOICES[knob]:
        given: dict[str, Any] = {knob: str(choice)}
        assert getattr(PrefillOnlyConfig(**given), knob) is choice
    with pytest.raises(ConfigError, match=f"{flag_name(knob)} must be one of .*, got 'lifo'"):
        PrefillOnlyConfig(**{knob: "lifo"})  # type: ignore[arg-type]


@pytest.mark.parametrize("knob", PATHS)
def test_a_path_is_text(knob: str) -> None:
    given: dict[str, Any] = {knob: "/run/x.sock"}
    assert getattr(PrefillOnlyConfig(**given), knob) == "/run/x.sock"
    with pytest.raises(ConfigError, match=f"{flag_name(knob)} must be a path, got 3.* none"):
        PrefillOnlyConfig(**{knob: 3})  # type: ignore[arg-type]


def test_a_choice_is_shown_as_its_word() -> None:
    assert json.dumps(asdict(PrefillOnlyConfig(order=Order.FCFS))).count('"order": "fcfs"') == 1


def test_the_configuration_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        PrefillOnlyConfig().max_items = 5  # type: ignore[misc]


def test_a_mapping_gives_the_knobs_that_it_holds_and_defaults_for_the_rest() -> None:
    given = {
        "enable_prefill_only": True,
        "prefill_only_max_items": 7,
        "prefill_only_max_forward_tokens": None,
        "model_path": "m",
    }
    assert config_from_mapping(given) == PrefillOnlyConfig(max_items=7)


@pytest.mark.parametrize("values", [{}, {"enable_prefill_only": False}, {"max_items": 3}])
def test_not_enabled_is_no_configuration(values: dict[str, Any]) -> None:
    assert config_from_mapping(values) is None


@pytest.mark.parametrize("enable", [{}, {"enable_prefill_only": False}])
def test_a_knob_without_the_extension_is_refused(enable: dict[str, bool]) -> None:
    for knob in KNOBS:
        with pytest.raises(ConfigError, match=f"{flag_name(knob)} .*--enable-prefill-only"):
            config_from_mapping({f"prefill_only_{knob}": 4, **enable})


def test_a_mapping_with_a_knob_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="--prefill-only-max-items"):
        config_from_mapping({"enable_prefill_only": True, "prefill_only_max_items": 0})
