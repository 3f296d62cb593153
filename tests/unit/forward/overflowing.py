"""Requests whose numbers leave a half-precision model's range, beside others, through a runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.scheduling.runtime import Ended, PackedRuntime
from sglang_prefill_ext.wire.arrays import int_array, values_from_bytes
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.status import Status
from tests.unit.forward.tiny_model import HIDDEN, LAYERS, TinyModel
from tests.unit.scheduling.caches import MemoryCache
from tests.unit.scheduling.jobs import first_come

HUGE = 96
"""A token whose own embedding the model's first product takes out of its range."""

LABELS = [3, 5]

_LARGE = {torch.float16: 6e4, torch.bfloat16: 3e38, torch.float32: 3e38}
"""Finite in the dtype; eight times as much is not."""

_POLICY = first_come(1000, launch_tokens=10**6)


class OverflowingModel(TinyModel):
    """A model in half precision."""

    def __init__(self, dtype: torch.dtype, device: torch.device | None = None) -> None:
        super().__init__()
        self.dtype = dtype
        for name in ("tokens", "positions", "head"):
            setattr(self, name, getattr(self, name).to(dtype))
        for name in ("query", "key", "value", "output"):
            setattr(self, name, [each.to(dtype) for each in getattr(self, name)])
        self.tokens[HUGE] = _LARGE[dtype]
        if device is not None:
            self.move(device)


def rows(prefix: Sequence[int], *suffixes: Sequence[int]) -> PackedRows:
    """A request; a token of -1 stands for an embedding that leaves the model's range."""
    tokens = [*prefix, *(token for suffix in suffixes for token in suffix)]
    overridden = {}
    if -1 in tokens:
        overridden["overrides"] = np.full((1, HIDDEN), 3e38, dtype=np.float32)
    lens = int_array([len(suffix) for suffix in suffixes])
    return PackedRows(int_array(tokens), len(prefix), lens, Labels(int_array(LABELS)), **overridden)


class Overflow:
    """A model behind a runtime with a prefix cache."""

    def __init__(
        self,
        dtype: torch.dtype,
        way: AttentionWay = AttentionWay.TORCH,
        device: torch.device | None = None,
    ) -> None:
        model = OverflowingModel(dtype, device)
        self._pool = model.pool
        executor = PackedExecutor(model, readout_bytes=1 << 20, attention=way)
        self.cache = MemoryCache(device=device)
        self.runtime = PackedRuntime(executor, self._take, _POLICY, cache=self.cache)
        self.statuses: dict[str, Status] = {}
        self._values: dict[str, np.ndarray] = {}

    def serve(self, *requests: PackedRows) -> list[np.ndarray]:
        """Submit requests together; return their values, none for failed ones."""
        self._values.clear()
        for number, request in enumerate(requests):
            self.runtime.submit(f"job-{number}", request, None)
        while self.runtime.busy:
            self.runtime.step()
        return [self._values[f"job-{number}"] for number in range(len(requests))]

    @property
    def forwards(self) -> int:
        return self.runtime.stats.forwards

    def assert_cache_is_finite(self) -> None:
        for slots in self.cache.committed.values():
            for layer in range(LAYERS):
                for kept in self._pool.buffers(layer):
                    assert kept[slots].isfinite().all()

    def _take(self, ended: Sequence[Ended]) -> None:
        for job, result in ended:
            self.statuses[job.rid] = Status(result.status)
            self._values[job.rid] = values_from_bytes(result.values)


PREFIX = list(range(10, 30))
OTHERS = [rows(PREFIX, [1, 2], [3, 4, 5]), rows([], [7, 8, 9])]
_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 1e-1, torch.float32: 1e-5}
"""Of log-probs of several nats, between forwards that add up in another order."""


def assert_spoils_nobody(
    guilty: PackedRows,
    dtype: torch.dtype,
    way: AttentionWay = AttentionWay.TORCH,
    device: torch.device | None = None,
) -> Overflow:
    """Serve a request between others, which must get the values that they get alone.

    They must also get them from the cache afterwards. The request itself is answered with NaN if it
    has embeddings; otherwise its answer says that the stock path has to be taken.
    """
    alone = [Overflow(dtype, way, device).serve(other)[0] for other in OTHERS]
    together = Overflow(dtype, way, device)
    first, spoilt, second = together.serve(OTHERS[0], guilty, OTHERS[1])
    statuses = dict(together.statuses)
    together.assert_cache_is_finite()
    for found, wanted in zip([first, second, *together.serve(*OTHERS)], alone * 2, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=_TOLERANCE[dtype])
    answered = len(guilty.overrides) > 0
    assert np.isnan(spoilt).any() if answered else not len(spoilt)
    status = Status.OK if answered else Status.NOT_FINITE
    assert [statuses[f"job-{number}"] for number in range(3)] == [
        Status.OK,
        status,
        Status.OK,
    ]
    return together
