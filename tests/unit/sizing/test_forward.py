from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bench.floor import least_ms
from sglang_prefill_ext.sizing.device import DEVICES, Device
from sglang_prefill_ext.sizing.forward import (
    LABELS,
    ForwardTime,
    Serving,
    expected_padded_rows,
    padded_ratio,
)
from sglang_prefill_ext.sizing.shape import Shape
from sglang_prefill_ext.sizing.sublayers import Experts
from sglang_prefill_ext.sizing.work import kv_numbers, packed_bytes, packed_operations
from tests.unit.sizing.models import DENSE, SPARSE, servings, shapes

SMALL = DENSE["0.6B"]


@given(servings, shapes, st.sampled_from([1, 2, 4]))
def test_the_floor_is_a_lower_bound(serving: Serving, shape: Shape, ranks: int) -> None:
    model, device = serving.model, serving.device
    operations = packed_operations(model, shape, LABELS)
    traffic = packed_bytes(
        *(model, shape, LABELS),
        weight_bytes=serving.weight_bytes,
        number_bytes=serving.number_bytes,
    )
    least = least_ms(operations, traffic, device.tflops, device.gb_s) / ranks
    assert serving.forward(shape, ranks).seconds * 1e3 >= least


@given(shapes, st.sampled_from([1, 2, 4]), st.sampled_from([0.5, 1.0]))
def test_only_weights_shrink_in_fewer_bits(shape: Shape, ranks: int, weight_bytes: float) -> None:
    device = DEVICES["h100-sxm"]
    whole, less = (
        Serving(SMALL, device, each).forward(shape, ranks) for each in (2.0, weight_bytes)
    )
    assert less.all_reduce_s == whole.all_reduce_s
    kept = (2 * kv_numbers(SMALL, shape.packed_tokens)) / (ranks * device.bytes_per_s)
    shrunk = (less.traffic_s - kept) / (whole.traffic_s - kept)
    assert shrunk == pytest.approx(weight_bytes / 2)


@given(servings, shapes, st.integers(1, 4))
def test_one_rank_has_no_all_reduce_and_several_have(
    serving: Serving, shape: Shape, requests: int
) -> None:
    assert serving.forward(shape, 1, requests).all_reduce_s == 0.0
    assert serving.forward(shape, 2, requests).all_reduce_s > 0.0


@given(servings, shapes, st.sampled_from([1, 2, 4]), st.integers(1, 50))
def test_more_items_never_take_less(serving: Serving, shape: Shape, ranks: int, more: int) -> None:
    larger = replace(shape, items=shape.items + more)
    took_s = serving.forward(shape, ranks).seconds
    assert serving.forward(larger, ranks).seconds >= took_s * (1 - 1e-9)


@given(servings, shapes, st.sampled_from([1, 2, 4]), st.integers(2, 20))
def test_requests_take_no_longer_together_than_apart(
    serving: Serving, shape: Shape, ranks: int, requests: int
) -> None:
    assume(requests * shape.packed_tokens <= 16384)  # a larger forward is launched otherwise
    together_s = serving.forward(shape, ranks, requests).seconds
    assert together_s <= requests * serving.forward(shape, ranks).seconds * 1.01


def test_small_forwards_of_one_rank_are_replayed() -> None:
    serving = Serving(SMALL, DEVICES["h100-sxm"])
    assert serving.forward(Shape(100, 10, 10), 1).launch_s == pytest.approx(45e-6 * 28)
    assert serving.forward(Shape(100, 10, 10), 2).launch_s == pytest.approx(8.34e-3)
    assert serving.launch_s(20_000, 1) == pytest.approx(8.34e-3)


def test_forwards_with_mamba_are_launched_kernel_by_kernel() -> None:
    mamba: Any = SimpleNamespace(layers=28, is_replayable=False)
    assert Serving(mamba, DEVICES["h100-sxm"]).launch_s(100, 1) == pytest.approx(8.34e-3)


def test_launching_a_replay_of_few_layers_takes_the_host_longer_than_the_device() -> None:
    few: Any = SimpleNamespace(layers=2, is_replayable=True)
    assert Serving(few, DEVICES["h100-sxm"]).launch_s(100, 1) == pytest.approx(0.6e-3)


def test_more_tokens_than_one_forward_may_have_are_several() -> None:
    serving = Serving(SMALL, DEVICES["h100-sxm"])
    assert serving.forward(Shape(1, 1000, 40), 2).launch_s == pytest.approx(3 * 8.34e-3)


def test_each_of_several_forwards_reads_the_weights() -> None:
    shape, device = Shape(1, 1000, 40), DEVICES["h100-sxm"]  # 40,001 tokens
    read = Serving(SMALL, device).forward(shape, 1).traffic_s * device.bytes_per_s
    once = packed_bytes(SMALL, shape, LABELS)
    assert read - once == pytest.approx(2 * 2 * SMALL.read_weights(13_333))


def test_a_measured_launch_is_that_of_a_forward_of_any_size() -> None:
    device = Device.measured(SMALL, tokens_per_s=1000, launch_ms=20, link_gb_s=1, link_us=0)
    serving = Serving(SMALL, device)
    assert serving.launch_s(100, 1) == serving.launch_s(10_000, 2) == 0.02


def test_ranks_add_up_the_embedding_and_each_layer_twice() -> None:
    link: Any = SimpleNamespace(all_reduce_s=lambda num_bytes, ranks: num_bytes * ranks)
    # The last attention and the last MLP compute the read rows only, 27 layers all tokens.
    of_tokens, of_rows = 1 + 2 * 27, 2
    expected = 2 * 2 * 1024 * (of_tokens * 100 + of_rows * 10)
    assert Serving(SMALL, link).all_reduces_s(100, 10, ranks=2) == expected


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize("rows", [0.5, 4.0, 30.0, 64.0, 200.0])
def test_rows_of_whole_blocks_are_those_of_the_poisson_distribution(
    rows: float, block: int
) -> None:
    probabilities = (
        math.exp(routed * math.log(rows) - rows - math.lgamma(routed + 1)) for routed in range(500)
    )
    exactly = sum(each * -(-routed // block) for routed, each in enumerate(probabilities)) * block
    assert expected_padded_rows(rows, block) == pytest.approx(exactly, rel=0.02)


def test_what_overlaps_counts_once() -> None:
    assert ForwardTime(1, 2, 3, 4, overlaps=True).spent == {"memory": 3, "all-reduces": 4}
    assert ForwardTime(8, 2, 3, 4, overlaps=True).spent == {"launches": 8}
    assert ForwardTime(8, 2, 1, 4, overlaps=False).seconds == 14


def test_a_measured_device_takes_what_was_measured() -> None:
    device = Device.measured(SMALL, tokens_per_s=1000, launch_ms=20, link_gb_s=1, link_us=0)
    # Nearly all layers compute all tokens, and attention comes on top.
    assert Serving(SMALL, device).forward(Shape(1, 99, 10), 1).seconds == pytest.approx(1, rel=0.05)


def test_uneven_experts_make_several_ranks_wait() -> None:
    shape, device = Shape(100, 400, 16), DEVICES["h100-sxm"]
    even, uneven = Serving(SPARSE, device), Serving(SPARSE, device, imbalance=2.0)
    assert uneven.forward(shape, 1) == even.forward(shape, 1)
    longer = uneven.forward(shape, 4).arithmetic_s / even.forward(shape, 4).arithmetic_s
    assert 1.2 < longer < 2


def test_parts_of_a_request_fill_fewer_blocks_of_experts() -> None:
    serving = Serving(SPARSE, DEVICES["h100-sxm"])
    whole = serving.forward(Shape(1, 120, 16), 1).arithmetic_s
    assert 4 * serving.forward(Shape(1, 120, 4), 1).arithmetic_s > 1.3 * whole


def test_a_divided_forward_pads_the_experts_of_each_of_its_parts() -> None:
    serving = Serving(SPARSE, DEVICES["h100-sxm"])
    one = serving.forward(Shape(1, 1000, 16), 1).arithmetic_s
    assert serving.forward(Shape(1, 1000, 16), 1, 4).arithmetic_s == pytest.approx(4 * one, 1e-6)


@pytest.mark.parametrize("block", [16, 64, 128])
@pytest.mark.parametrize("rows", [0.1, 1, 5, 32, 75, 128, 180, 700])
def test_padded_rows_are_those_of_drawn_ones(rows: float, block: int) -> None:
    drawn = np.random.default_rng(0).poisson(rows, 20_000)
    padded = -(-drawn // block) * block
    assert expected_padded_rows(rows, block) == pytest.approx(padded.mean(), rel=0.05)


def test_blocks_are_small_up_to_as_many_tokens_as_experts() -> None:
    experts = Experts(hidden=2048, count=128, active_count=8, width=768)
    assert padded_ratio(128, experts) == expected_padded_rows(8, 16) / 8
    assert padded_ratio(1024, experts) == pytest.approx(1.47, abs=0.01)
    assert padded_ratio(2880, experts) == expected_padded_rows(180, 64) / 180
    assert padded_ratio(10**6, experts) < 1.01


def test_more_tokens_never_take_fewer_rows() -> None:
    experts = Experts(hidden=2048, count=128, active_count=8, width=768)
    padded = [tokens * padded_ratio(tokens, experts) for tokens in range(1, 5000)]
    assert (np.diff(padded) >= 0).all()
