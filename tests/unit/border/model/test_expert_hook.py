"""Choice of an entry by SGLang's own lookup in its own tables, without the kernels."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe, fused_moe_triton_config
from sglang.srt.layers.moe.utils import MoeRunnerBackend
from torch import Tensor, nn

from sglang_prefill_ext.border.model import expert_hook, expert_layers, expert_setup
from sglang_prefill_ext.border.model.expert_hook import (
    EXPERTS,
    Call,
    PairedConfig,
    with_both_entries,
    with_chosen_block,
)
from sglang_prefill_ext.border.model.expert_layers import rows_by_tma, table_of
from sglang_prefill_ext.border.model.expert_setup import described, set_up_experts
from sglang_prefill_ext.config import MoePolicy, MoeSource, PrefillOnlyConfig
from sglang_prefill_ext.forward.expert_blocks import LEAST_TOKENS, ExpertBlocks
from sglang_prefill_ext.forward.expert_counts import ExpertCounts
from sglang_prefill_ext.moe.blocks import Entry
from sglang_prefill_ext.moe.policy import BlockTime, Pair

CPU = torch.device("cpu")
PLAIN: dict[str, Any] = {
    "use_fp8_w8a8": False,
    "use_int8_w8a8": False,
    "use_int8_w8a16": False,
    "use_int4_w4a16": False,
    "per_channel_quant": False,
    "block_shape": None,
}
BLOCK_FP8 = {**PLAIN, "use_fp8_w8a8": True, "block_shape": [128, 128]}
FP8 = {**PLAIN, "use_fp8_w8a8": True}

CASES = {
    "qwen3-30b-a3b h100": ("NVIDIA H100 80GB HBM3", 128, 768, 8, PLAIN),
    "qwen3-30b-a3b h200": ("NVIDIA H200", 128, 768, 8, PLAIN),
    "qwen3-30b-a3b h200 fp8": ("NVIDIA H200", 128, 768, 8, BLOCK_FP8),
    "mixtral h200": ("NVIDIA H200", 8, 14336, 2, PLAIN),
    "mixtral h200 fp8": ("NVIDIA H200", 8, 14336, 2, FP8),
    "no table": ("NVIDIA H100 80GB HBM3", 24, 1000, 4, PLAIN),
    "no table fp8": ("NVIDIA H100 80GB HBM3", 24, 1000, 4, FP8),
}


def call_of(experts: int, width: int, top_k: int, flags: dict[str, Any]) -> Call:
    """A call with weights without memory, because SGLang reads only their shapes."""
    padding = fused_moe.padding_size if flags == FP8 else 0
    w1 = torch.empty((experts, 2 * width, 64), device="meta")
    w2 = torch.empty((experts, 64, width + padding), device="meta")
    return Call(w1, w2, torch.bfloat16, top_k, flags)


def ids_of(tokens: int, experts: int, top_k: int) -> Tensor:
    return (torch.arange(tokens * top_k, dtype=torch.int32) % experts).view(tokens, top_k)


@pytest.fixture(autouse=True)
def sglang_without_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace what SGLang's lookup asks a device; note the block for which rows were aligned."""
    plain = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=False))
    monkeypatch.setattr(fused_moe_triton_config, "get_exec", lambda: plain)
    monkeypatch.setattr(
        fused_moe, "moe_align_block_size", lambda ids, block, experts: (ids, block, experts)
    )
    on_device(monkeypatch, "NVIDIA H100 80GB HBM3")
    yield
    EXPERTS.serve({})
    fused_moe_triton_config.get_moe_configs.cache_clear()


def on_device(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fused_moe_triton_config.get_moe_configs.cache_clear()
    monkeypatch.setattr(fused_moe_triton_config, "get_device_name", lambda: name)


def prepared(call: Call, tokens: int, *, hooked: bool = True) -> Any:
    """What `_prepare_fused_moe_run` returns, with the hook around it or without."""
    hidden = torch.zeros((tokens, 64), dtype=call.dtype)
    original = fused_moe._prepare_fused_moe_run
    run = partial(with_chosen_block, original) if hooked else original
    return run(hidden, call.w1, call.w2, ids_of(tokens, len(call.w1), call.top_k), **call.flags)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_the_table_is_the_one_in_which_sglang_looks(
    case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, *shape = case
    on_device(monkeypatch, device)
    call = call_of(*shape)
    table = table_of(call)
    for tokens in (1, 8, 23, 24, 25, 64, 100, 384, 700, 1280, 1281, 3000, 16384):
        config, *_ = prepared(call, tokens, hooked=False)
        assert config["BLOCK_SIZE_M"] == table.candidates(tokens)[0].block


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_forced_entry_is_taken_whole_for_both_products(
    case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, *shape = case
    on_device(monkeypatch, device)
    call, tokens = call_of(*shape), 2304
    for entry in table_of(call).candidates(tokens):
        with EXPERTS.forcing(entry):
            config, down, down_tma, up_tma, ids, block, _ = prepared(call, tokens)
        expected = prepared(call, entry.tokens, hooked=False)
        assert (config, down, down_tma, up_tma) == expected[:4]
        assert config["BLOCK_SIZE_M"] == block == entry.block
        assert down is None or down["BLOCK_SIZE_M"] == block
        assert len(ids) == tokens  # the routing is that of the real tokens


def test_without_layers_nothing_is_changed() -> None:
    call = call_of(128, 768, 8, PLAIN)
    assert prepared(call, 2304)[0] == prepared(call, 2304, hooked=False)[0]


def served(call: Call) -> ExpertBlocks:
    """A layer whose routing is not known yet."""
    experts = len(call.w1)
    counts = ExpertCounts(1, experts, CPU)
    blocks = ExpertBlocks(1, experts, table_of(call), MoePolicy.AUTO, {}, counts)
    EXPERTS.serve({call.w1.data_ptr(): (blocks, 0)})
    return blocks


def test_a_layer_is_computed_in_the_block_that_was_chosen() -> None:
    call = call_of(128, 768, 8, PLAIN)
    served(call)
    # 72 rows for each expert on average: 128 by SGLang's table, 64 by the padding.
    assert prepared(call, 2304 // 2, hooked=False)[0]["BLOCK_SIZE_M"] == 64
    assert prepared(call, 1400, hooked=False)[0]["BLOCK_SIZE_M"] == 128
    config, *_, block, _ = prepared(call, 1400)
    assert (config["BLOCK_SIZE_M"], block) == (64, 64)


def test_decode_steps_and_other_layers_keep_sglangs_choice() -> None:
    call, other = (call_of(128, 768, 8, PLAIN) for _ in range(2))
    blocks = served(call)
    EXPERTS.serve({1234: (blocks, 0)})  # an address that no layer has
    assert prepared(other, 1400)[0]["BLOCK_SIZE_M"] == 128
    served(call)
    short = LEAST_TOKENS - 1
    assert prepared(call, short)[0] == prepared(call, short, hooked=False)[0]


def test_a_table_is_never_changed() -> None:
    call = call_of(128, 768, 8, PLAIN)
    before = {n: dict(prepared(call, n, hooked=False)[0]) for n in (64, 2048)}
    served(call)
    prepared(call, 2048)
    assert {n: prepared(call, n, hooked=False)[0] for n in (64, 2048)} == before


class Layer:
    """Stands for a layer of experts: it only does the lookup.

    SGLang's own needs a device for weights and kernels.
    """

    def __init__(
        self, call: Call, fails_with: Collection[int] = (), *, loses_pairs: bool = False
    ) -> None:
        self._call, self.fails_with, self.loses_pairs = call, fails_with, loses_pairs
        self.quant_method = self
        self.moe_runner_config = SimpleNamespace(apply_router_weight_on_input=False)
        self.top_k, self.num_experts = call.top_k, len(call.w1)
        self.num_local_experts = self.num_experts
        self.hidden_size, self.params_dtype = 64, call.dtype
        self.backend = MoeRunnerBackend.TRITON
        self.blocks: list[int] = []
        self._output: Any = None

    def get_moe_runner_backend(self, layer: object) -> MoeRunnerBackend:
        return self.backend

    def apply(self, layer: object, dispatch_output: Any) -> Any:
        call, ids = self._call, dispatch_output.topk_output.topk_ids
        config, *_ = with_chosen_block(
            fused_moe._prepare_fused_moe_run,
            *(dispatch_output.hidden_states, call.w1, call.w2, ids),
            **call.flags,
        )
        self.blocks.append(config["BLOCK_SIZE_M"])
        if self.blocks[-1] in self.fails_with:
            raise RuntimeError("out of resource")
        if not (self.loses_pairs and isinstance(config, PairedConfig)):
            self._output = 3 * dispatch_output.hidden_states
        return SimpleNamespace(hidden_states=self._output)


REAL = Call(torch.empty(16, 64, 64), torch.empty(16, 64, 32), torch.bfloat16, 2, PLAIN)
"""A call with weights in memory, for which SGLang has no tuned file."""

DEFAULT = {16: 16, 17: 64}
"""Tokens -> block of SGLang's entries for `REAL`."""


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Start on a device whose clock moves only while something runs; the directory of times."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    return tmp_path / "sglang-prefill-ext" / "experts"


def test_a_start_times_every_entry_that_can_be_chosen_and_keeps_the_times(timed: Path) -> None:
    calls = [
        Call(*(torch.empty(w.shape) for w in call_of(16, 32, 2, PLAIN)[:2]), *rest)
        for rest in [(torch.bfloat16, 2, PLAIN)] * 2
    ]
    layers = [Layer(call) for call in calls]
    use = expert_setup._set_up(layers, CPU, PrefillOnlyConfig())
    (group,) = use.groups
    assert set(group.times) == set(group.table.entries)
    assert use.as_dict()["policy"] == "least-time"
    assert len(use.balance) == 2
    (kept,) = timed.iterdir()
    layers[0].blocks.clear()
    again = expert_setup._set_up(layers, CPU, PrefillOnlyConfig())
    assert again.groups[0].times == group.times
    forms = len(expert_setup._FORMS)
    assert len(layers[0].blocks) == 1 + forms * len(group.times)  # once to find it, and to compile
    assert [*timed.iterdir()] == [kept]


def test_times_of_another_device_or_tuning_are_measured_anew(
    timed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = partial(expert_setup._set_up, [Layer(REAL)], CPU, PrefillOnlyConfig())
    start()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    start()
    assert len([*timed.iterdir()]) == 2
    tuned = {tokens: {"BLOCK_SIZE_M": block, "num_warps": 8} for tokens, block in DEFAULT.items()}
    monkeypatch.setattr(expert_layers, "get_moe_configs", lambda *_, **__: tuned)
    start()
    assert len([*timed.iterdir()]) == 3
    start()
    assert len([*timed.iterdir()]) == 3


def test_a_block_that_cannot_be_computed_is_never_chosen(
    timed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    use = expert_setup._set_up([Layer(REAL, fails_with=[16])], CPU, PrefillOnlyConfig())
    (group,) = use.groups
    assert [entry.block for entry in group.times] == [64]
    assert caplog.text.count("blocks of 16 rows are left out: out of resource") == 1


@pytest.mark.parametrize("policy", [MoePolicy.AUTO, MoePolicy.PADDING_RATIO])
def test_where_no_block_can_be_timed_sglangs_choice_stays(
    timed: Path, monkeypatch: pytest.MonkeyPatch, policy: MoePolicy
) -> None:
    monkeypatch.setattr(expert_setup, "_seconds", lambda *_: 1 / 0)
    with pytest.raises(RuntimeError, match="no entry of SGLang's table can be run"):
        expert_setup._set_up([Layer(REAL)], CPU, PrefillOnlyConfig(moe=policy))
    assert prepared(REAL, 100)[0] == prepared(REAL, 100, hooked=False)[0]


def test_a_kept_block_that_fails_now_is_left_out(
    timed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layer = Layer(REAL)
    assert len(expert_setup._set_up([layer], CPU, PrefillOnlyConfig()).groups[0].times) == 2
    EXPERTS.serve({})  # the server starts again
    layer.fails_with = [16]
    (group,) = expert_setup._set_up([layer], CPU, PrefillOnlyConfig()).groups
    assert [entry.block for entry in group.times] == [64]
    assert "blocks of 16 rows are left out" in caplog.text


DEVICE = PrefillOnlyConfig(moe_source=MoeSource.DEVICE)


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch) -> list[Pair]:
    """The pairs between which the device would have to choose."""
    found: list[Pair] = []
    monkeypatch.setattr(expert_hook, "leave_one", lambda pair, *_: found.append(pair))
    return found


def test_a_pair_brings_both_entries_whole(choices: list[Pair]) -> None:
    call = call_of(128, 768, 8, PLAIN)
    first, second = Entry(2048, 128), Entry(1024, 64)
    time = BlockTime(0.0, 1.0)
    with EXPERTS.forcing(Pair(first, second, time, time)):
        config, down, *_ = prepared(call, 2304)
    alone = [prepared(call, entry.tokens, hooked=False) for entry in (first, second)]
    for found, product in ((config, 0), (down, 1)):
        assert (dict(found), found.other) == (alone[0][product], alone[1][product])
    assert [len(choices), choices[0].first] == [1, first]


def test_a_pair_is_launched_with_what_each_entry_has() -> None:
    rows, experts, padded = (torch.zeros(1) for _ in range(3))
    second = expert_hook.Prepared({"a": 2}, None, False, True, rows, experts, padded)
    config = PairedConfig({"a": 1}, second.config, second, tma=True)
    seen: list[Any] = []
    arguments: list[Any] = [*range(14), config, "type"]
    with_both_entries(
        lambda *args, **flags: seen.append((args, flags)), *arguments, b_use_tma=False
    )
    own, other = seen
    assert own == (tuple(arguments), {"b_use_tma": False})
    assert other == (
        (*range(9), rows, experts, padded, 12, 13, {"a": 2}, "type"),
        {"b_use_tma": True},
    )
    with_both_entries(lambda *args: seen.append(args), *range(14), {"a": 1})
    assert len(seen) == 3


def test_a_start_compares_both_entries_of_a_pair_with_each_alone(
    timed: Path, choices: list[Pair]
) -> None:
    (group,) = expert_setup._set_up([Layer(REAL)], CPU, DEVICE).groups
    assert group.source is MoeSource.DEVICE
    one, two = choices
    assert (one[:2], one.first_time, one.second_time) == (two[:2], two.second_time, two.first_time)
    assert isinstance(prepared(REAL, 100)[0], PairedConfig)
    with pytest.raises(RuntimeError, match="other numbers than one alone"):
        expert_setup._set_up([Layer(REAL, loses_pairs=True)], CPU, DEVICE)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_rows_are_read_by_tma_where_sglang_says_so(
    case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, *shape = case
    on_device(monkeypatch, device)
    monkeypatch.setattr(fused_moe, "_moe_support_tma", lambda: True)
    call = call_of(*shape)
    table = table_of(call)
    by_sglang = {each for each in table.entries if prepared(call, each.tokens, hooked=False)[2]}
    assert rows_by_tma(call, table) == by_sglang
    assert bool(by_sglang) == (shape[1] == 768 and "H100" in device)


def test_layers_of_another_shape_are_a_group_of_their_own() -> None:
    narrow, wide = call_of(8, 32, 2, PLAIN), call_of(8, 64, 2, PLAIN)
    assert described(narrow) == described(call_of(8, 32, 2, PLAIN)) != described(wide)
    assert described(narrow) != described(narrow._replace(flags=FP8))


class Model(nn.Module):
    """A model with one layer of experts that was never set up."""

    def __init__(self, *, experts: bool) -> None:
        super().__init__()
        if experts:
            layer = FusedMoE.__new__(FusedMoE)
            nn.Module.__init__(layer)
            self.experts = layer


@pytest.mark.parametrize(
    ("experts", "policy", "device", "reason"),
    [
        (False, MoePolicy.AUTO, "cuda", "no experts"),
        (True, MoePolicy.STOCK, "cuda", "asked for"),
        (True, MoePolicy.AUTO, "cpu", "experts on cpu are computed without blocks"),
        (True, MoePolicy.AUTO, "cuda", "AttributeError: "),
    ],
    ids=["no experts", "stock", "cpu", "a layer unlike SGLang's"],
)
def test_why_sglangs_choice_stays(
    experts: bool, policy: MoePolicy, device: str, reason: str
) -> None:
    config = PrefillOnlyConfig(moe=policy)
    use = set_up_experts(Model(experts=experts), torch.device(device), config)
    told = use.as_dict()
    assert told["reason"].startswith(reason)
    assert (told["policy"], told["layers"]) == ("stock", [])


def test_experts_that_another_kernel_computes_are_not_even_run() -> None:
    layer = Layer(call_of(8, 32, 2, PLAIN))
    layer.backend = MoeRunnerBackend.DEEP_GEMM
    use = expert_setup._set_up([layer], CPU, PrefillOnlyConfig())
    assert "another way" in use.reason
    assert not use.groups
    assert layer.blocks == []


def test_an_entry_is_forced_only_meanwhile() -> None:
    call = call_of(128, 768, 8, PLAIN)
    with EXPERTS.forcing(Entry(1024, 64)):
        assert prepared(call, 2304)[0]["BLOCK_SIZE_M"] == 64
    with pytest.raises(KeyError), EXPERTS.forcing(Entry(1024, 64)):
        fused_moe._prepare_fused_moe_run.__dict__["absent"]
    assert prepared(call, 2304)[0]["BLOCK_SIZE_M"] == 128
