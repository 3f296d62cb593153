"""Vectors of encoders: packed, by SGLang's own prefill and by Hugging Face; for `family_runner`."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from sglang.benchmark.one_batch import TreeCacheNamespace
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from sglang_prefill_ext.border.model.vector_models import SglangEncoder
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.errors import PackedForwardError
from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.graphs import replay
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.planner import plan_forward
from sglang_prefill_ext.scheduling.split import split_request
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.parts import whole_rows
from sglang_prefill_ext.wire.read import Vectors

BUDGETS = {"one_forward": 16_384, "small_budget": 160}
GRAPH_TOKENS = 256
"""More than all prompts of a shape have."""
SHAPES = ((0, (1, 5, 130, 33, 64, 3)), (40, (1, 2, 8, 30)), (80, (9, 30)))
"""Tokens of the shared prefix and of the rows behind it."""

Prompt = tuple[list[int], list[int]]
"""Token ids and types."""


def encoder_report(runner: Any, directory: str, packed: Callable[..., Any]) -> dict[str, Any]:
    """Vectors of the prompts of `SHAPES`, ``[prompts, width]``, by each way to compute them.

    Args:
        packed: runs whole rows with a given number of tokens a forward.
    """
    config = AutoConfig.from_pretrained(directory)
    model = SglangEncoder(runner, None)
    work = [_prompts(shape, config) for shape in SHAPES]
    rows = [
        whole_rows(_packed_rows(prompts, shape[0], model.vector_width, config.vocab_size))
        for shape, prompts in zip(SHAPES, work, strict=True)
    ]
    flat = [prompt for prompts in work for prompt in prompts]
    reference = _reference(directory, config)
    found: dict[str, Any] = {
        name: [value for each in rows for value in packed(model, each, budget)["values"]]
        for name, budget in BUDGETS.items()
    }
    graphs = PackedExecutor(model, readout_bytes=1 << 20, attention=AttentionWay.FUSED)
    with patch.object(replay, "sizes_up_to", lambda most: [most]):  # others would take time only
        graphs.capture_graphs(GRAPH_TOKENS)
    found["graphs"] = [value for each in rows for value in _values(graphs, each)]
    found["stock"] = [value for prompt in flat for value in _stock_vector(runner, prompt)]
    found["hugging_face"] = [value for prompt in flat for value in reference(prompt)]
    forwards = [packed(model, each, BUDGETS["small_budget"])["forwards"] for each in rows]
    shape = (len(flat), model.vector_width)
    vectors = {name: np.reshape(values, shape).tolist() for name, values in found.items()}
    return {
        "vectors": vectors,
        "forwards": forwards,
        "graphs": graphs.graph_use.as_dict(),
        "refused": _refused(model, rows[0]),
    }


def _prompts(shape: tuple[int, tuple[int, ...]], config: Any) -> list[Prompt]:
    """Random prompts; some have a second text, if the model distinguishes it from the first."""
    rng = random.Random(sum(shape[1]))

    def tokens(count: int) -> list[int]:
        return [rng.randrange(config.vocab_size) for _ in range(count)]

    prefix, prompts = tokens(shape[0]), []
    for number, length in enumerate(shape[1]):
        second = length if _has_types(config) and number % 2 else 0
        first = shape[0] + length - second
        prompts.append((prefix + tokens(length), [0] * first + [1] * second))
    return prompts


def _packed_rows(
    prompts: list[Prompt], prefix: int, vector_width: int, vocab_size: int
) -> PackedRows:
    typed = [
        [token + kind * vocab_size for token, kind in zip(ids, types, strict=True)]
        for ids, types in prompts
    ]
    suffixes = [ids[prefix:] for ids in typed]
    return PackedRows(
        int_array([*typed[0][:prefix], *(token for suffix in suffixes for token in suffix)]),
        prefix,
        int_array(list(map(len, suffixes))),
        Vectors(vector_width),
    )


def _values(executor: PackedExecutor, rows: PackedRows) -> list[float]:
    """The vectors of rows that are computed in one forward."""
    (piece,) = split_request(rows, ForwardBudget(BUDGETS["one_forward"]))
    values = executor.launch(plan_forward([piece])).wait()
    return values.tolist()  # type: ignore[no-any-return]


def _refused(model: SglangEncoder, rows: PackedRows) -> str:
    """The error that the model raises for embeddings in place of tokens."""
    tokens = rows.tokens.copy()
    tokens[0] = -1
    odd = replace(rows, tokens=tokens, overrides=np.zeros((1, 128), np.float32))
    try:
        _values(PackedExecutor(model, readout_bytes=1 << 20), odd)
    except PackedForwardError as error:
        return str(error)
    return ""


def _has_types(config: Any) -> bool:
    return getattr(config, "type_vocab_size", 1) > 1


def _reference(directory: str, config: Any) -> Callable[[Prompt], list[float]]:
    has_head = config.architectures[0].endswith("Classification")
    averages = config.model_type == "gemma3_text"
    kind = AutoModelForSequenceClassification if has_head else AutoModel
    model = kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()

    def vector(prompt: Prompt) -> list[float]:
        ids, types = (torch.tensor([part]) for part in prompt)
        output = model(input_ids=ids, **{"token_type_ids": types} if _has_types(config) else {})
        if has_head:
            return output.logits[0].tolist()  # type: ignore[no-any-return]
        states = output.last_hidden_state[0]
        state = states.mean(dim=0) if averages else states[0]
        return (state / state.norm()).tolist()  # type: ignore[no-any-return]

    return vector


def _stock_vector(runner: Any, prompt: Prompt) -> list[float]:
    ids, types = prompt
    sampling = SamplingParams(max_new_tokens=0, temperature=0)
    request = Req("0", "", array("q", ids), sampling, token_type_ids=types)
    request.refresh_fill_ids()
    request.extend_end = len(ids)
    request.logprob_start_len = -1
    batch = ScheduleBatch.init_new(
        [request],
        runner.req_to_token_pool,
        runner.token_to_kv_pool_allocator,
        TreeCacheNamespace(
            page_size=1,
            device=runner.device,
            token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
        ),
        runner.model_config,
        enable_overlap=False,
        spec_algorithm=SpeculativeAlgorithm.NONE,
    )
    batch.prepare_for_extend()
    batch.input_ids = batch.prefill_input_ids_cpu.to(batch.device)
    forward = ForwardBatch.init_new(batch, runner, return_hidden_states_before_norm=False)
    vector = runner.forward(forward).logits_output.embeddings.view(-1).tolist()
    runner.req_to_token_pool.clear()
    runner.token_to_kv_pool_allocator.clear()
    return vector  # type: ignore[no-any-return]
