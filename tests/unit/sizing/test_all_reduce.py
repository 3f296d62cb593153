from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.sizing.device import DEVICES, Device
from sglang_prefill_ext.sizing.forward import Serving
from tests.unit.sizing.models import decoder

LINK = Device(1, 1, 1, link_gb_s=1, link_us=10)


def test_one_exchange_or_a_ring_by_hand() -> None:
    assert LINK.all_reduce_s(1000, 4) == pytest.approx(10e-6 + 3 * 1e-6)
    ring_s = 2 * 3 * (10e-6 + 1e9 / 4 / 1e9)
    assert LINK.all_reduce_s(10**9, 4) == pytest.approx(ring_s)
    assert LINK.all_reduce_s(0, 2) == pytest.approx(10e-6)


@given(st.integers(0, 10**9), st.sampled_from(list(DEVICES.values())))
def test_one_rank_has_nothing_to_add_up(num_bytes: int, device: Device) -> None:
    assert device.all_reduce_s(num_bytes, 1) == 0.0


@given(st.integers(0, 10**9), st.integers(2, 8), st.sampled_from(list(DEVICES.values())))
def test_more_bytes_and_more_ranks_never_take_less(
    num_bytes: int, ranks: int, device: Device
) -> None:
    took_s = device.all_reduce_s(num_bytes, ranks)
    assert took_s > 0
    assert device.all_reduce_s(num_bytes + 1000, ranks) > took_s
    assert device.all_reduce_s(num_bytes, ranks + 1) >= took_s


def test_two_a_layer_and_one_after_the_embedding() -> None:
    model = decoder(3, 4, 2, 1, 3, 5, 7)
    tokens, rows = LINK.all_reduce_s(100 * 4 * 2, 2), LINK.all_reduce_s(10 * 4 * 2, 2)
    assert Serving(model, LINK).all_reduces_s(100, 10, 2) == pytest.approx(5 * tokens + 2 * rows)


def test_a_recurrence_adds_up_all_tokens_wherever_it_lies() -> None:
    kinds = {"layer_types": ["full_attention", "conv"], "conv_L_cache": 3}
    model = decoder(2, 4, 2, 1, 3, 5, 7, **kinds)
    tokens, rows = LINK.all_reduce_s(100 * 4 * 2, 2), LINK.all_reduce_s(10 * 4 * 2, 2)
    assert Serving(model, LINK).all_reduces_s(100, 10, 2) == pytest.approx(4 * tokens + rows)


def test_embeddings_of_layers_are_not_added_up() -> None:
    own = {"hidden_size_per_layer_input": 2, "vocab_size_per_layer_input": 7}
    plain, model = decoder(3, 4, 2, 1, 3, 5, 7), decoder(3, 4, 2, 1, 3, 5, 7, **own)
    found, wanted = (Serving(each, LINK).all_reduces_s(100, 10, 2) for each in (model, plain))
    assert found == wanted
