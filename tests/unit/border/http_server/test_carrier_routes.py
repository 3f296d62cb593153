"""What an engine tells a router about its offer, and the cost of its model."""

from __future__ import annotations

import pytest
from transformers import AutoConfig

from sglang_prefill_ext.border.http_server.carrier_routes import OfferChanges, _pair_tokens
from sglang_prefill_ext.modelmaker.presets import PRESETS


@pytest.mark.parametrize(
    ("preset", "pair", "parameters"),
    [
        # A layer with queries of 64 numbers in all.
        ("micro", 4 * 64, 64 * (2 * 64 + 2 * 32) + 3 * 64 * 128),
        # Keys of 48 and values of 24 numbers; latents of 64 and 16; two of four experts and one.
        (
            "glm4-moe-lite",
            2 * 2 * 4 * (48 + 24),
            2 * (128 * 80 + 64 * 4 * 56 + 48 * (128 + 4 * 48) + 4 * 24 * 128)
            + 3 * 128 * 256
            + 3 * 128 * 128 * 3
            + 4 * 128,
        ),
        # Of two layers one has attention, whose queries have gates. The other has queries and keys
        # of 64 numbers, values and gates of 128, and two more numbers for each of four heads.
        (
            "qwen3.5",
            4 * 128,
            128 * (128 * 3 + 2 * 64)
            + (128 * (2 * 64 + 2 * 128 + 8) + 128 * 128 + 4 * (2 * 64 + 128))
            + 2 * 3 * 128 * 256,
        ),
    ],
)
def test_operations_of_a_pair_by_those_of_a_token(preset: str, pair: int, parameters: int) -> None:
    model = PRESETS[preset]
    config = AutoConfig.for_model(model.model_type, **model.shape)
    assert _pair_tokens(config) == pytest.approx(pair / (2 * parameters))


def test_what_cannot_be_counted_is_unknown() -> None:
    assert _pair_tokens(AutoConfig.for_model("mamba")) == 0


def test_an_offer_is_as_old_as_the_engine_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter([100.0, 125.0, 130.0])
    monkeypatch.setattr("time.time", lambda: next(now_s))
    changes = OfferChanges()
    told = [changes.since_s(fingerprint) for fingerprint in "aabba"]
    assert told == [100.0, 100.0, 125.0, 125.0, 130.0]
