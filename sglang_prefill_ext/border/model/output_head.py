"""The output head of a loaded SGLang model, which makes logits of hidden states."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from sglang.srt.distributed.communication_op import tensor_model_parallel_all_gather
from sglang.srt.layers.logits_processor import LogitsMetadata, should_apply_lm_head_quant_method
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from torch import Tensor

from sglang_prefill_ext.forward.logits import ProductHead, product


class OutputHead:
    """Computes logits. If they are a matrix product, `product` allows to compute only some of them.

    The weight is looked up in every call, as an update may replace the tensor.

    Args:
        model: the model of a generation server.
        vocab_size: number of tokens that have a logit.
    """

    def __init__(self, model: Any, vocab_size: int) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._is_product = _is_product(model)
        processor = model.logits_processor
        self._is_shard = bool(processor.do_tensor_parallel_all_gather)
        if self._is_shard:
            self._is_product = self._is_product and _is_cut_evenly(model, vocab_size)
            # SGLang's own gather uses a buffer that all ranks write to. It is correct only if the
            # ranks synchronise between two calls, but chunks of logits follow immediately.
            processor = copy.copy(processor)
            processor._logits_gatherer = partial(tensor_model_parallel_all_gather, dim=-1)
        self._processor = processor
        head = self.product()
        self._is_plain = head is not None and head.is_plain
        self._metadata = LogitsMetadata(forward_mode=ForwardMode.EXTEND)

    def product(self) -> ProductHead | None:
        """See `Model.product_head`."""
        if not self._is_product:
            return None
        head, first, num_tokens = output_module(self._model), 0, self._vocab_size
        if self._is_shard:
            first = head.shard_indices.org_vocab_start_index
            num_tokens = head.shard_indices.org_vocab_end_index - first
        scale = self._processor.logit_scale
        return ProductHead(
            head.weight[:num_tokens],
            first=first,
            scale=1.0 if scale is None else float(scale),
            soft_cap=self._processor.final_logit_softcapping or 0.0,
            gather=_from_all_ranks if self._is_shard else None,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Model.logits`."""
        if self._is_plain:
            # The same as SGLang's method, without its checks of many settings.
            weight = output_module(self._model).weight[: self._vocab_size]
            return product(weight, hidden)
        logits: Tensor = self._processor._get_logits(
            hidden, output_module(self._model), self._metadata, use_logits_buffer=False
        )
        return logits


def output_module(model: Any) -> Any:
    """The module that computes logits.

    Some models with tied embeddings have no `lm_head`. SGLang never uses that of Gemma 3.
    """
    tied = not hasattr(model, "lm_head") or type(model).__name__ == "Gemma3ForCausalLM"
    return model.model.embed_tokens if tied else model.lm_head


def _is_product(model: Any) -> bool:
    """Whether logits are ``hidden @ weight.T``, scaled and capped."""
    head, processor = output_module(model), model.logits_processor
    repacked = getattr(head, "use_intel_amx_backend", False) or hasattr(head, "set_lora")
    quantised = should_apply_lm_head_quant_method(head, getattr(head, "quant_method", None))
    other_precision = (
        processor.use_fp32_lm_head
        or processor.use_fp32_lm_head_output
        or processor.rl_on_policy_target is not None
    )
    return hasattr(head, "weight") and not (repacked or quantised or other_precision)


def _is_cut_evenly(model: Any, vocab_size: int) -> bool:
    """Whether every rank has tokens of the vocabulary; the result is the same on all ranks."""
    head, processor = output_module(model), model.logits_processor
    elsewhere = processor.do_tensor_parallel_all_gather_dp_attn or processor.use_attn_tp_group
    if elsewhere or head.num_added_embeddings or head.org_vocab_size != vocab_size:
        return False
    return bool(head.num_embeddings_per_partition * (head.tp_size - 1) < vocab_size)


def _from_all_ranks(values: Tensor) -> Tensor:
    """All-gather: from ``[n]`` on every rank to ``[ranks, n]``."""
    gathered: Tensor = tensor_model_parallel_all_gather(values[None], dim=0)
    return gathered
