"""SGLang's own Triton experts give the same numbers with every block of rows.

The alignment of rows to blocks, which SGLang has as a CUDA kernel only, is written out here.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from sglang.kernels.ops.moe import fused_moe_triton_kernels
from sglang.kernels.ops.moe.fused_moe_triton_kernels import invoke_fused_moe_kernel
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe, fused_moe_triton_config
from torch import Tensor

from bench.moe import launches
from sglang_prefill_ext.border.model.expert_hook import (
    EXPERTS,
    with_both_entries,
    with_chosen_block,
)
from sglang_prefill_ext.moe.blocks import Entry
from sglang_prefill_ext.moe.policy import BlockTime, Pair
from tests.kernels.conftest import COMPILED, STOCK_TOLERANCE
from tests.kernels.devices import never_waiting

TOKENS, HIDDEN, WIDTH, EXPERT_COUNT, TOP_K = 90, 64, 32, 5, 2
TABLE = {
    tokens: {
        "BLOCK_SIZE_M": block,
        "BLOCK_SIZE_N": 32,
        "BLOCK_SIZE_K": 32,
        "GROUP_SIZE_M": 1 + block // 64,
        "num_warps": 4,
        "num_stages": 2,
    }
    for tokens, block in [(16, 16), (64, 32), (512, 64), (2048, 128)]
}


def aligned(ids: Tensor, block: int, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort rows by expert, and pad each expert's to whole blocks; see `moe_align_block_size`.

    Rows of experts on other ranks, whose id is -1, come first, in blocks of expert -1.
    """
    flat = ids.flatten().cpu()
    rows: list[int] = []
    of_block: list[int] = []
    for expert in range(-1, experts):
        own = (flat == expert).nonzero().flatten().tolist()
        own += [len(flat)] * (-len(own) % block)
        rows += own
        of_block += [expert] * (len(own) // block)
    as_tensor = lambda values: torch.tensor(values, dtype=torch.int32, device=ids.device)  # noqa: E731
    return as_tensor(rows), as_tensor(of_block), as_tensor([len(rows)])


@pytest.fixture
def layer(device: torch.device) -> dict[str, Tensor]:
    """A layer of experts of which one gets most rows and one gets none."""
    generator = torch.Generator().manual_seed(7)

    def drawn(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=generator) / 4).to(device)

    first = torch.randint(0, 2, (TOKENS,), generator=generator) * 3
    second = torch.randint(1, 3, (TOKENS,), generator=generator)
    return {
        "hidden": drawn(TOKENS, HIDDEN),
        "w1": drawn(EXPERT_COUNT, 2 * WIDTH, HIDDEN),
        "w2": drawn(EXPERT_COUNT, HIDDEN, WIDTH),
        "weights": torch.rand((TOKENS, TOP_K), generator=generator).to(device),
        "ids": torch.stack([first, second], 1).int().to(device),
    }


def in_double(layer: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The up-projections ``[tokens, top_k, 2 * width]`` and the output ``[tokens, hidden]``."""
    hidden, w1, w2 = (layer[name].double() for name in ("hidden", "w1", "w2"))
    ids = layer["ids"].long()
    up = torch.einsum("th,tkwh->tkw", hidden, w1[ids])
    active = torch.nn.functional.silu(up[..., :WIDTH]) * up[..., WIDTH:]
    out = torch.einsum("tkw,tkhw->tkh", active, w2[ids])
    return up, (out * layer["weights"].double()[..., None]).sum(1)


def assert_product(found: Tensor, layer: dict[str, Tensor]) -> None:
    """The up-projections are those of float64, as exactly as SGLang's kernel multiplies."""
    expected = in_double(layer)[0]
    torch.testing.assert_close(found.double(), expected, rtol=STOCK_TOLERANCE, atol=STOCK_TOLERANCE)


@pytest.mark.parametrize("entry", TABLE.values(), ids=lambda entry: str(entry["BLOCK_SIZE_M"]))
def test_a_product_is_the_same_with_every_block(
    entry: dict[str, int], layer: dict[str, Tensor]
) -> None:
    found = torch.empty((TOKENS, TOP_K, 2 * WIDTH), device=layer["hidden"].device)
    invoke_fused_moe_kernel(
        *(layer["hidden"], layer["w1"], None, found, None, None, None),
        *(layer["weights"], layer["ids"]),
        *aligned(layer["ids"], entry["BLOCK_SIZE_M"], EXPERT_COUNT),
        mul_routed_weight=False,
        top_k=TOP_K,
        config=entry,
        compute_type=tl.float32,
        use_fp8_w8a8=False,
        use_int8_w8a8=False,
        use_int8_w8a16=False,
        use_int4_w4a16=False,
        per_channel_quant=False,
    )
    assert_product(found, layer)


@pytest.fixture
def sglangs_layer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's whole layer behind our hook, with a table that has every block."""
    flags = SimpleNamespace(
        deterministic=SimpleNamespace(enable_deterministic_inference=False),
        moe=SimpleNamespace(enable_fused_moe_sum_all_reduce=False),
    )
    monkeypatch.setattr(fused_moe, "get_exec", lambda: flags)
    monkeypatch.setattr(fused_moe_triton_config, "get_exec", lambda: flags)
    monkeypatch.setattr(fused_moe_triton_config, "get_moe_configs", lambda *_, **__: TABLE)
    monkeypatch.setattr(fused_moe, "moe_align_block_size", aligned)
    for name, hook in (
        ("_prepare_fused_moe_run", with_chosen_block),
        ("invoke_fused_moe_kernel", with_both_entries),
    ):
        monkeypatch.setattr(fused_moe, name, partial(hook, getattr(fused_moe, name)))

    def run(layer: dict[str, Tensor]) -> Tensor:
        names = ("w1", "w2", "weights", "ids")
        return fused_moe.fused_experts_impl(
            layer["hidden"].clone(), *(layer[name] for name in names), inplace=True
        )

    return run


def assert_same_in_half(found: Tensor, expected: Tensor) -> None:
    """Equal to 1e-5, but for few numbers that were rounded to the next one in half precision.

    SGLang keeps the products of float32 layers in half precision. Blocks of another size may add
    the terms of a sum in another order. If it lies between two halves, its last bit decides.
    """
    same = torch.isclose(found, expected, rtol=1e-5, atol=1e-5)
    assert same.float().mean() > 0.98
    torch.testing.assert_close(found, expected, rtol=2**-10, atol=2**-11)


def test_a_layer_is_the_same_with_every_entry(sglangs_layer: Any, layer: dict[str, Tensor]) -> None:
    stock = sglangs_layer(layer)
    # SGLang keeps the products of float32 in half precision.
    torch.testing.assert_close(stock.double(), in_double(layer)[1], rtol=2e-3, atol=2e-3)
    for tokens, entry in TABLE.items():
        with EXPERTS.forcing(Entry(tokens, entry["BLOCK_SIZE_M"])):
            found = sglangs_layer(layer)
        assert_same_in_half(found, stock)


ENTRIES = [Entry(tokens, entry["BLOCK_SIZE_M"]) for tokens, entry in TABLE.items()]
PAIRS = [(ENTRIES[0], ENTRIES[3]), (ENTRIES[2], ENTRIES[1]), (ENTRIES[3], ENTRIES[2])]
NEVER, ALWAYS, BY_ROWS = BlockTime(1.0, 0.0), BlockTime(0.0, 0.0), BlockTime(0.0, 1.0)


def counts_of(ids: Tensor) -> Any:
    """Number of rows of each expert on this rank."""
    return np.bincount(ids[ids >= 0].cpu().numpy(), minlength=EXPERT_COUNT)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Block and padded rows of each launch of SGLang's kernel; one without rows writes nothing."""
    found: list[tuple[int, int]] = []
    original = fused_moe.invoke_fused_moe_kernel

    def noting(*args: Any, **flags: Any) -> None:
        out, padded, entry = args[3], int(args[11]), args[14]
        found.append((entry["BLOCK_SIZE_M"], padded))
        before = out.clone()
        original(*args, **flags)
        assert padded or torch.equal(out.nan_to_num(7.0), before.nan_to_num(7.0))

    monkeypatch.setattr(fused_moe, "invoke_fused_moe_kernel", noting)
    return found


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0].block}, {pair[1].block}")
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
def test_a_layer_is_the_same_whichever_entry_the_device_takes(
    launched: list[tuple[int, int]],
    sglangs_layer: Any,
    layer: dict[str, Tensor],
    pair: tuple[Entry, Entry],
    is_first: bool,
) -> None:
    stock = sglangs_layer(layer)
    launched.clear()
    times = (ALWAYS, NEVER) if is_first else (NEVER, ALWAYS)
    with EXPERTS.forcing(Pair(*pair, *times)):
        found = sglangs_layer(layer)
    assert_same_in_half(found, stock)
    # Both products launch both blocks, and one of them has rows.
    assert [block for block, _ in launched] == [each.block for each in pair] * 2
    assert [rows > 0 for _, rows in launched] == [is_first, not is_first] * 2


@pytest.mark.parametrize("elsewhere", [0.0, 0.6], ids=["all experts here", "most elsewhere"])
def test_the_device_takes_what_the_routing_of_this_forward_asks_for(
    launched: list[tuple[int, int]], sglangs_layer: Any, layer: dict[str, Tensor], elsewhere: float
) -> None:
    generator = torch.Generator().manual_seed(3)
    taken = set()
    for skew in (0.0, 1.0, 3.0, 9.0):
        logs = -skew * torch.arange(EXPERT_COUNT).float()
        ids = torch.multinomial(logs.exp().expand(TOKENS, -1), TOP_K, generator=generator)
        ids[torch.rand((TOKENS, TOP_K), generator=generator) < elsewhere] = -1
        routed = {**layer, "ids": ids.int().to(layer["ids"].device)}
        # Blocks of 128 pay where one expert has nearly all rows.
        pair = Pair(ENTRIES[3], ENTRIES[1], BY_ROWS, BlockTime(0.0, 1.5))
        with EXPERTS.forcing(pair.first):
            expected = sglangs_layer(routed)
        launched.clear()
        with EXPERTS.forcing(pair):
            found = sglangs_layer(routed)
        assert_same_in_half(found, expected)
        (block,) = {block for block, rows in launched if rows}
        assert block == pair.taken(counts_of(ids)).block
        taken.add(block)
    assert len(taken) == (2 if elsewhere == 0.0 else 1)


@pytest.mark.parametrize("times", [(ALWAYS, NEVER), (NEVER, ALWAYS)], ids=["first", "second"])
def test_a_product_of_a_pair_is_that_of_float64(
    times: tuple[BlockTime, BlockTime], sglangs_layer: Any, layer: dict[str, Tensor]
) -> None:
    found = torch.empty((TOKENS, TOP_K, 2 * WIDTH), device=layer["hidden"].device)
    with EXPERTS.forcing(Pair(*PAIRS[0], *times)):
        prepare_and_launch(layer, found)
    assert_product(found, layer)


def prepare_and_launch(layer: dict[str, Tensor], out: Tensor) -> None:
    """The up-projection of a layer behind the hooks, kept in float32."""
    quantised = dict.fromkeys(
        ("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16"), False
    )
    flags = {**quantised, "per_channel_quant": False, "block_shape": None}
    hidden, w1, w2, ids = (layer[name] for name in ("hidden", "w1", "w2", "ids"))
    config, _, _, up_tma, *aligned_rows = fused_moe._prepare_fused_moe_run(
        hidden, w1, w2, ids, **flags
    )
    fused_moe.invoke_fused_moe_kernel(
        *(hidden, w1, None, out, None, None, None, layer["weights"], ids),
        *(*aligned_rows, False, TOP_K, config),
        compute_type=tl.float32,
        b_use_tma=up_tma,
        **flags,
    )


class Launches:
    """Stands for a kernel: notes that it is launched, and with which tensors."""

    def __init__(self) -> None:
        self.count = 0

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **kwargs: Any) -> None:
            self.count += 1

        return launch


def test_nothing_is_read_on_the_host(
    device: torch.device, sglangs_layer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An operation that needs a value on the host raises: a meta tensor has none, and on a device
    # torch must not wait.
    place = device if COMPILED else torch.device("meta")
    empty = partial(torch.empty, device=place)
    layer = {
        "hidden": empty(TOKENS, HIDDEN),
        "w1": empty(EXPERT_COUNT, 2 * WIDTH, HIDDEN),
        "w2": empty(EXPERT_COUNT, HIDDEN, WIDTH),
        "weights": empty(TOKENS, TOP_K),
        "ids": empty(TOKENS, TOP_K, dtype=torch.int32),
    }
    alignments: list[int] = []

    def aligned_without_values(ids: Tensor, block: int, experts: int) -> tuple[Tensor, ...]:
        alignments.append(block)
        return tuple(empty(size, dtype=torch.int32) for size in (1024, 1024 // block, 1))

    choice, products = Launches(), Launches()
    monkeypatch.setattr(fused_moe, "moe_align_block_size", aligned_without_values)
    monkeypatch.setattr("prefill_kernels.block_choice.op.block_choice_kernel", choice)
    monkeypatch.setattr(fused_moe_triton_kernels, "fused_moe_kernel", products)
    with never_waiting(), pytest.raises((RuntimeError, NotImplementedError)):
        int(layer["ids"][0, 0])
    for choice_of, expected in (
        (ENTRIES[2], launches.HISTORY),
        (Pair(ENTRIES[2], ENTRIES[3], BY_ROWS, BY_ROWS), launches.DEVICE),
    ):
        alignments.clear()
        choice.count = products.count = 0
        with EXPERTS.forcing(choice_of), never_waiting():
            prepare_and_launch(layer, empty(TOKENS, TOP_K, 2 * WIDTH))
        # A layer aligns once, and has two products like this one.
        found = (len(alignments), choice.count, 2 * products.count)
        assert found == (expected.alignments, expected.choices, expected.products)
