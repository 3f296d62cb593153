from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import host_cost
from bench.expert_parallelism.cost import Batch, Engine, Floats, Sends
from bench.expert_parallelism.placement import rebalanced
from sglang_prefill_ext.sizing.shape import Shape
from tests.unit.bench.expert_parallelism.engines import SERVING, SHAPE, batch, engine

MODEL, DEVICE = SERVING.model, SERVING.device
FULL = 16_384
GPUS = st.sampled_from([1, 2, 4, 8])
ROUTINGS = st.integers(0, 1000).map(
    lambda seed: np.random.default_rng(seed).dirichlet(np.ones(128), size=(2, 3))
)


@given(GPUS, ROUTINGS, st.integers(1, FULL), st.integers(1, FULL), st.booleans())
def test_rows_of_all_gpus_are_those_of_all_tokens(
    gpus: int, routing: Floats, first: int, others: int, balanced: bool
) -> None:
    tokens = np.array([first, *[others] * (gpus - 1)], dtype=np.float64)
    found = engine(gpus, routing=routing)
    if balanced:
        placement = np.array([[rebalanced(load, gpus, 16) for load in each] for each in routing])
        found = Engine(SERVING, SHAPE, Sends.ONCE, routing, placement)
    rows = found.rows(Batch(tokens, tokens))
    assert rows.shape == (2, 3, gpus, 128)
    assert rows.sum(axis=2) == pytest.approx(routing * tokens.sum() * 8)


@given(GPUS)
def test_even_routing_that_costs_no_exchange_is_ideal(gpus: int) -> None:
    """Each GPU takes as long as a replica with all experts and its own tokens: blocks are full."""
    found = engine(gpus)
    assert found.busiest == pytest.approx(1)
    own_s = engine(1).forward_s(batch(1, FULL))
    assert found.forward_s(batch(gpus, FULL)) == pytest.approx(own_s)


def test_a_layer_takes_as_long_as_its_busiest_gpu() -> None:
    routing = np.array([np.repeat([[1.0], [2.0], [3.0], [2.0]], 32, axis=0).ravel() / 256] * 2)
    found = engine(4, routing=routing[None])
    work = batch(4, FULL)
    experts_s = found.experts_s(found.rows(work), work)
    assert experts_s.argmax(axis=-1).tolist() == [[2, 2]]
    assert experts_s[0, 0] / experts_s[0, 0, 0] == pytest.approx([1, 2, 3, 2], rel=0.02)
    expected_s = found.others_s(work) + MODEL.layers * experts_s[0, 0, 2]
    assert found.forward_s(work) == pytest.approx(expected_s)
    assert found.busiest == pytest.approx(1.5)


@given(ROUTINGS, st.sampled_from([2, 4, 8]), st.integers(1, FULL))
def test_skew_and_exchanges_never_make_a_forward_shorter(
    routing: Floats, gpus: int, tokens: int
) -> None:
    work = batch(gpus, tokens)
    taken = [engine(gpus, sends, routing).forward_s(work) for sends in Sends]
    every, once, hidden = taken
    assert hidden <= once * (1 + 1e-9)
    assert once <= every * (1 + 1e-9)
    assert engine(gpus).forward_s(batch(gpus, FULL)) <= engine(gpus, routing=routing).forward_s(
        batch(gpus, FULL)
    ) * (1 + 1e-9)


def test_every_copy_travels_that_is_computed_elsewhere() -> None:
    sent = engine(4, Sends.EVERY_COPY).exchange_s(batch(4, 1000))
    num_bytes = 1000 * 8 * 2048 * 2 * 3 / 4
    expected_s = DEVICE.link_us / 1e6 + num_bytes / (DEVICE.link_gb_s * 1e9)
    assert sent == pytest.approx(np.full((1, 2), expected_s))
    once = engine(4, Sends.ONCE).exchange_s(batch(4, 1000)) - DEVICE.link_us / 1e6
    copies = 3 * (1 - (3 / 4) ** 8)
    assert once == pytest.approx(copies * 1000 * 2048 * 2 / (DEVICE.link_gb_s * 1e9))


def test_the_gpu_with_the_busiest_experts_gets_the_most() -> None:
    to_first = np.zeros((1, 1, 128))
    to_first[..., :64] = 1 / 64
    found = engine(2, Sends.EVERY_COPY, to_first)
    sent = found.exchange_s(Batch(np.array([1000.0, 3000.0]), np.zeros(2)))
    num_bytes = 3000 * 8 * 2048 * 2
    assert sent == pytest.approx(DEVICE.link_us / 1e6 + num_bytes / (DEVICE.link_gb_s * 1e9))


def test_one_gpu_has_all_weights_and_sends_nothing() -> None:
    one = engine(1, Sends.EVERY_COPY)
    assert one.weights_gb == pytest.approx(2 * MODEL.stored_weights / 1e9)
    assert one.exchange_s(batch(1, 1000)).tolist() == [[0, 0]]
    shared_gb = (one.weights_gb - 2 * engine(2).weights_gb) / -1
    assert engine(4).weights_gb == pytest.approx(shared_gb + (one.weights_gb - shared_gb) / 4)


@pytest.mark.parametrize("shape", ["60+576x4", "60+576x8", "60+576x28"])
def test_one_gpu_takes_as_long_as_the_plan_says(shape: str) -> None:
    """They may differ: the plan has one size of blocks and counts less work for the last layer."""
    sizes = Shape.parse(shape)
    work = Batch(np.array([float(sizes.packed_tokens)]), np.array([float(sizes.packed_pairs)]))
    planned_s = SERVING.forward(sizes, 1).seconds
    assert engine(1).forward_s(work) == pytest.approx(planned_s, rel=0.1)


def test_small_forwards_wait_for_weights_or_for_launches() -> None:
    read_s = MODEL.read_weights(1000) * 2 / DEVICE.bytes_per_s
    assert engine(1).forward_s(batch(1, 1000)) == pytest.approx(read_s, rel=0.2)
    launch_s = host_cost.eager(MODEL.layers).ms / 1e3
    assert engine(8).forward_s(batch(8, 100)) == launch_s


@given(GPUS, ROUTINGS, st.integers(1024, FULL))
def test_the_line_is_near_the_forward(gpus: int, routing: Floats, tokens: int) -> None:
    """It overestimates forwards of medium size, because small ones are bound by reading weights."""
    found = engine(gpus, Sends.ONCE, routing)
    line, work = found.speed(), batch(gpus, tokens)
    shown_s = line.seconds(gpus * tokens, int(work.pairs.sum()))
    assert 0.97 <= shown_s / found.forward_s(work) <= 1.3
    assert line.max_forward_tokens == gpus * FULL


def test_more_tokens_than_a_forward_may_have_are_several_forwards() -> None:
    one = engine(1)
    assert one.request_s(batch(1, 3 * FULL)) == pytest.approx(3 * one.forward_s(batch(1, FULL)))
    assert one.request_s(batch(1, FULL)) == one.forward_s(batch(1, FULL))
