"""Engines of tests: Qwen3-30B-A3B on H100s."""

from __future__ import annotations

import numpy as np

from bench.expert_parallelism.cases import MODELS, shape_of
from bench.expert_parallelism.cost import Batch, Engine, Floats, Sends
from bench.expert_parallelism.placement import in_order
from sglang_prefill_ext.sizing.device import DEVICES
from sglang_prefill_ext.sizing.forward import Serving

SERVING = Serving(MODELS["Qwen3-30B-A3B"], DEVICES["h100-sxm"])
SHAPE = shape_of("Qwen3-30B-A3B")
EVEN = np.full((1, 2, 128), 1 / 128)


def engine(gpus: int, sends: Sends = Sends.HIDDEN, routing: Floats = EVEN) -> Engine:
    """An engine whose experts are placed in order."""
    fixed = in_order(128, gpus)
    placement = np.broadcast_to(fixed, (*routing.shape[:-1], *fixed.shape))
    return Engine(SERVING, SHAPE, sends, routing, placement)


def batch(gpus: int, tokens: float) -> Batch:
    """A batch with this number of tokens on each GPU."""
    return Batch(np.full(gpus, tokens), np.full(gpus, 300 * tokens))
