"""What an engine tells a router about the cost of its model."""

from __future__ import annotations

import pytest
from transformers import AutoConfig

from sglang_prefill_ext.border.http_server.carrier_routes import _width_and_parameters
from sglang_prefill_ext.modelmaker.presets import PRESETS


@pytest.mark.parametrize(
    ("preset", "width", "parameters"),
    [
        ("micro", 64, 64 * (2 * 64 + 2 * 32) + 3 * 64 * 128),
        # Keys of 48 and values of 24 numbers; latents of 64 and 16; two of four experts and one.
        (
            "glm4-moe-lite",
            4 * (48 + 24) // 2,
            2 * (128 * 80 + 64 * 4 * 56 + 48 * (128 + 4 * 48) + 4 * 24 * 128)
            + 3 * 128 * 256
            + 3 * 128 * 128 * 3
            + 4 * 128,
        ),
    ],
)
def test_attention_and_parameters_of_a_token(preset: str, width: int, parameters: int) -> None:
    model = PRESETS[preset]
    config = AutoConfig.for_model(model.model_type, **model.shape)
    assert _width_and_parameters(config) == (width, parameters)


def test_what_cannot_be_counted_is_unknown() -> None:
    assert _width_and_parameters(AutoConfig.for_model("mamba")) == (0, 0)
