"""Models, routing, and the engines that are compared."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from bench.expert_parallelism.cost import Engine, Floats, Sends
from bench.expert_parallelism.placement import in_order, rebalanced
from bench.moe.routing import drawn, recorded
from bench.moe.shapes import SHAPES, Shape
from sglang_prefill_ext.sizing.forward import Serving
from sglang_prefill_ext.sizing.model import ModelShape

MODELS: Mapping[str, ModelShape] = {
    "Qwen3-30B-A3B": ModelShape.of_config(
        {
            "num_hidden_layers": 48,
            "hidden_size": 2048,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 151_936,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        }
    ),
    "GLM-4.5-Air": ModelShape.of_config(
        {
            "num_hidden_layers": 46,
            "hidden_size": 4096,
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 10_944,
            "vocab_size": 151_552,
            "first_k_dense_replace": 1,
            "n_routed_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "n_shared_experts": 1,
        }
    ),
}
"""As in their ``config.json``; the names are those of `bench.moe.shapes`."""

SKEWS = {"uniform": 0.0, "Zipf 0.4": 0.4, "Zipf 0.8": 0.8, "Zipf 1.2": 1.2, "recorded": 0.0}
"""Routing -> exponent of Zipf's law; 0: it does not follow one."""

FORWARDS, LAYERS = 12, 8  # of drawn routing; each forward has another one
LEAST_TOKENS = 2000  # of a recorded forward; the shares in shorter ones are mostly chance
COPIES_SHARE = 8  # one further copy for this many experts: DeepSeek-V3 has 32 copies of 256 experts


def shape_of(model: str) -> Shape:
    """Return the experts of a model, with the blocks that can be chosen for them."""
    return next(each for each in SHAPES if each.name == model)


@cache
def routing_of(name: str, experts: int, top_k: int, seed: int) -> Floats:
    """Share of each layer's rows that each expert gets; ``[forwards, layers, experts]``."""
    if name == "recorded":
        kept = recorded(experts, top_k)
        forwards = [each for each in kept if each.tokens >= LEAST_TOKENS]
    else:
        kind = "zipf" if SKEWS[name] else "uniform"
        sizes = (experts, top_k, 2 * LEAST_TOKENS, FORWARDS, seed)
        forwards = [*drawn(kind, *sizes, layers=LAYERS, skew=SKEWS[name])]
    counts = np.stack([each.counts for each in forwards]).astype(np.float64)
    shares: Floats = counts / counts.sum(axis=-1, keepdims=True)
    return shares


def replica(serving: Serving, shape: Shape, routing: Floats) -> Engine:
    """Return one GPU with all experts; like `expert_parallel`, without the first forward."""
    placement = np.ones((*routing[1:].shape[:-1], 1, shape.experts))
    return Engine(serving, shape, Sends.HIDDEN, routing[1:], placement)


def expert_parallel(
    serving: Serving, shape: Shape, routing: Floats, gpus: int, sends: Sends, *, balanced: bool
) -> Engine:
    """Return GPUs that divide the experts; the first forward of the routing is left out.

    Args:
        balanced: if true, experts are placed anew before each forward, by the mean load of all
            earlier forwards, and moving weights takes no time. If false, they stay in order.
    """
    fixed = in_order(shape.experts, gpus)
    placement = np.broadcast_to(fixed, (*routing[1:].shape[:-1], *fixed.shape))
    if balanced:
        copies = shape.experts // COPIES_SHARE
        placement = np.array(
            [
                [rebalanced(load, gpus, copies) for load in routing[:number].mean(axis=0)]
                for number in range(1, len(routing))
            ]
        )
    return Engine(serving, shape, sends, routing[1:], placement)
