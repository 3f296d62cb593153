"""The MoE expert layers of a loaded model: which they are, how one runs, and its tuned tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe
from sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe_triton_config import (
    get_config_dtype_str,
    get_default_config,
    get_moe_configs,
)
from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
from sglang.srt.layers.moe.topk import StandardTopKOutput, TopK
from sglang.srt.layers.moe.utils import MoeRunnerBackend
from sglang.srt.runtime_context import get_model
from sglang.srt.state_capturer.routed_experts import (
    get_global_experts_capturer,
    set_global_experts_capturer,
)

from sglang_prefill_ext.border.model.expert_hook import Call
from sglang_prefill_ext.moe.blocks import BlockTable, Entry


def experts_of(model: Any) -> list[Any]:
    """All expert layers of a model."""
    return [module for module in model.modules() if isinstance(module, FusedMoE)]


def tell_top_k(model: Any) -> None:
    """Tell `top_k` to the layers of those families that tell only what chooses the experts."""
    for block in model.modules():
        experts, chosen_by = getattr(block, "experts", None), getattr(block, "topk", None)
        if isinstance(experts, FusedMoE) and experts.top_k is None and isinstance(chosen_by, TopK):
            experts.top_k = chosen_by.topk_config.top_k


def computed_with(backend: MoeRunnerBackend, layers: Sequence[Any]) -> list[Any]:
    """The layers that SGLang computes with that backend; others cannot be run by `expert_work`."""
    return [
        layer for layer in layers if layer.quant_method.get_moe_runner_backend(layer) is backend
    ]


def expert_work(
    layer: Any, tokens: int, device: torch.device, value: float = 1.0
) -> Callable[[], Any]:
    """Return a function that runs a layer's experts on `tokens` tokens.

    The tokens are routed evenly to all experts on this device.

    Args:
        value: all hidden states have this value.
    """
    top_k = layer.top_k or 1
    ids = torch.arange(tokens * top_k, device=device, dtype=torch.int32) % layer.num_local_experts
    # Llama 4, whose experts' inputs are weighted, rounds the weights as it does the inputs.
    rounds = layer.moe_runner_config.apply_router_weight_on_input
    dtype = layer.params_dtype if rounds else torch.float32
    weights = torch.full((tokens, top_k), 1 / top_k, device=device, dtype=dtype)
    shape = (tokens, layer.hidden_size)
    hidden = torch.full(shape, value, device=device, dtype=layer.params_dtype)
    logits = torch.zeros(tokens, layer.num_experts, device=device)
    top = StandardTopKOutput(weights, ids.view(tokens, top_k), logits)
    dispatched = StandardDispatchOutput(hidden, None, top)
    return partial(layer.quant_method.apply, layer=layer, dispatch_output=dispatched)


def expert_settings(model: Any) -> Callable[[], AbstractContextManager[object]]:
    """Return a context manager for the packed forwards of a model; for most models it does nothing.

    Within it, two settings differ. SGLang's setting for shared experts is that of this model. And
    the experts of tokens are not recorded: with ``--enable-return-routed-experts`` SGLang records
    them for requests that ask for it, in a buffer that has the length of the longest stock batch,
    and reads it only after the next forward was launched.
    """
    shared = model.shared_experts_config
    if shared == get_model().shared_experts and get_global_experts_capturer() is None:
        return nullcontext

    @contextmanager
    def settings() -> Iterator[None]:
        capturer = get_global_experts_capturer()
        set_global_experts_capturer(None)
        try:
            with get_model().override(shared_experts=shared):
                yield
        finally:
            set_global_experts_capturer(capturer)

    return settings


def table_of(call: Call) -> BlockTable:
    """The table in which `_prepare_fused_moe_run` looks up a call.

    Without a tuned file, SGLang has two defaults: one up to as many tokens as there are experts,
    one for more. The table then has an entry for each.
    """
    experts, width, dtype, *_ = _key(call)
    tuned = _tuned(call, down=False) or {
        tokens: get_default_config(
            *(tokens, experts, width, call.w1.shape[2], call.top_k, dtype, False),
            call.flags["block_shape"],
        )
        for tokens in (experts, experts + 1)
    }
    return BlockTable({tokens: entry["BLOCK_SIZE_M"] for tokens, entry in tuned.items()})


def rows_by_tma(call: Call, table: BlockTable) -> frozenset[Entry]:
    """The entries whose down-projection reads its rows by TMA.

    Between the two products, their rows are stored in the order of their blocks, which the kernels
    of another entry could not read.
    """
    tuned = _tuned(call, down=True) or {}

    def down(entry: Entry) -> dict[str, Any]:
        return tuned[min(tuned, key=lambda tokens: abs(tokens - entry.tokens))]

    return frozenset(each for each in table.entries if tuned and down(each).get("USE_TMA"))


def tuned_text(call: Call) -> str:
    """SGLang's tuned configurations for a call, as text; times of other ones must not be used."""
    return "; ".join(str(_tuned(call, down=down)) for down in (False, True))


def _key(call: Call) -> tuple[int, int, str | None, int, int]:
    """Experts, width and dtype of a call, and the two numbers of its block shape."""
    flags = dict(call.flags)
    shape = flags.pop("block_shape")
    del flags["per_channel_quant"]
    padded = (flags["use_fp8_w8a8"] or flags["use_int8_w8a8"]) and shape is None
    experts, _, width = call.w2.shape
    width -= fused_moe.padding_size if padded else 0
    block_n, block_k = (shape[0], shape[1]) if shape else (0, 0)
    dtype = get_config_dtype_str(dtype=call.dtype, **flags)
    return experts, width, dtype, block_n, block_k


def _tuned(call: Call, *, down: bool) -> dict[int, dict[str, Any]] | None:
    """Tokens -> configuration; None without a tuned file."""
    per_channel = call.flags["per_channel_quant"]
    tuned: dict[int, dict[str, Any]] | None = get_moe_configs(
        *_key(call), per_channel_quant=per_channel, down_moe=down
    )
    return tuned
