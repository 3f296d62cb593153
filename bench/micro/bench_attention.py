"""Time the attention of one packed forward on this CPU: ``python -m bench.micro.bench_attention``.

The result of every way is first compared with that of the first way. Times are microseconds of one
layer, the best of several repetitions. With one thread they are CPU time, which other load on the
machine does not change.

* *row by row*: one SDPA call per row over the prefix and the row, like a backend without packing.
* *merge*, *copy*: `packed_attention` that always merges, or always copies, the prefix.
* *planned*: `packed_attention` as it is; *plan*: the cost of building it, once per forward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import torch
import typer
from rich.console import Console
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench.drawing import new_table
from sglang_prefill_ext.attention.dense import packed_attention
from sglang_prefill_ext.attention.dense_calls import DenseCalls
from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.layout import tiling
from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan

CPU = torch.device("cpu")
HEADS = {"micro": (4, 2, 16), "tiny": (8, 2, 32)}  # query heads, key heads, head size
REPETITIONS, SECONDS = 7, 0.05
TOLERANCE = 1e-5

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def shapes() -> dict[str, tuple[int, list[int]]]:
    """Prefix length and lengths of the rows."""
    mixed = np.random.default_rng(0).integers(1, 301, 50).tolist()
    return {
        "62": (0, [62]),
        "60+2x50": (60, [2] * 50),
        "50+150x50": (50, [150] * 50),
        "120+180x10": (120, [180] * 10),
        "50+mixed x50": (50, mixed),
        "500+20x50": (500, [20] * 50),
        "2000+10x100": (2000, [10] * 100),
    }


def row_by_row(prefix: int, lens: list[int]) -> Attention:
    ends = prefix + np.cumsum(lens)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.empty_like(q)
        if prefix:
            out[:prefix] = _sdpa(q[None, :prefix], k[None, :prefix], v[None, :prefix], True)[0]
        for end, length in zip(ends.tolist(), lens, strict=True):
            own = slice(end - length, end)
            keys, values = (torch.cat([x[:prefix], x[own]])[None] for x in (k, v))
            mask = torch.ones(length, prefix + length, dtype=torch.bool).tril(prefix)
            out[own] = _sdpa(q[None, own], keys, values, mask)[0]
        return out

    return attend


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | bool) -> Tensor:
    """`[B, M, H, D]`; `mask` True means causal."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    how = {"is_causal": True} if mask is True else {"attn_mask": mask}
    return scaled_dot_product_attention(q, k, v, enable_gqa=True, **how).transpose(1, 2)


def packed(prefix: int, lens: list[int]) -> Attention:
    attention = _build(prefix, lens)
    return lambda q, k, v: attention.forward(LayerInputs(q, k, v, q.shape[2] ** -0.5), [None])


def _build(prefix: int, lens: list[int]) -> DenseCalls:
    group = GroupSpan(held=0, fresh=prefix, suffix_lens=np.array(lens, dtype=np.int32))
    return packed_attention(ForwardLayout((group,)), CPU)


@contextmanager
def _copying_up_to(tokens: int) -> Iterator[None]:
    limits: dict[str, Any] = {"COPIED_PREFIX_TOKENS": tokens, "COPIED_PREFIX_RATIO": tokens}
    with patch.multiple(tiling, WHOLE_GROUP_TOKENS=0, **limits):
        yield


def measure(prefix: int, lens: list[int], heads: tuple[int, int, int]) -> dict[str, int]:
    """Microseconds of each way, in the order of the columns."""
    ways = {
        "row by row": row_by_row(prefix, lens),
        "planned": packed(prefix, lens),
    }
    for name, tokens in (("merge", 0), ("copy", 1_000_000)):
        with _copying_up_to(tokens):
            ways[name] = packed(prefix, lens)
    query_heads, key_heads, dim = heads
    widths = [query_heads * dim, key_heads * dim, key_heads * dim]
    fused = torch.split(torch.randn(prefix + sum(lens), sum(widths)), widths, dim=1)
    q, k, v = (x.view(len(x), -1, dim) for x in fused)
    expected = ways["row by row"](q, k, v)
    times = {}
    for name, attend in ways.items():
        error = (attend(q, k, v) - expected).abs().max().item()
        if error > TOLERANCE:
            raise SystemExit(f"{name} differs by {error} from row by row; nothing was measured")
        times[name] = _best(partial(attend, q, k, v))
    return times | {"plan": _best(lambda: _build(prefix, lens))}


def _best(call: Callable[[], object]) -> int:
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    call()
    start = clock()
    call()
    count = max(1, int(SECONDS / (clock() - start)))
    seconds = []
    for _ in range(REPETITIONS):
        start = clock()
        for _ in range(count):
            call()
        seconds.append((clock() - start) / count)
    return round(min(seconds) * 1e6)


def main(threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1) -> None:
    """Print how long the attention of one layer takes on this CPU, by each way."""
    torch.set_num_threads(threads)
    with torch.inference_mode():
        times = {
            (preset, shape): measure(prefix, lens, heads)
            for preset, heads in HEADS.items()
            for shape, (prefix, lens) in shapes().items()
        }
    words, ways = ("model", "shape"), next(iter(times.values()))
    table = new_table(f"us per layer, {threads} thread(s)", *words, *ways, left=words)
    for case, us in times.items():
        table.add_row(*case, *map(str, us.values()))
    Console(width=100).print(table)


if __name__ == "__main__":
    typer.run(main)
