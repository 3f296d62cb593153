"""Runs one workload through the packed path, stock prefill and Hugging Face; writes all numbers.

``family_runner.py OUT MODEL_DIR...`` writes ``OUT/<directory name>.json`` for every model, with all
three in float32. For ``bfloat16:MODEL_DIR`` only Hugging Face is in float32, and for
``CLASS:MODEL_DIR`` SGLang runs another class than the model's. Their files' names end with
``-bfloat16`` and ``-CLASS``. It runs as a script, because SGLang's state is one for a process, and
each model gets a child process. The children are forked after the imports, which take most of the
time.
"""

from __future__ import annotations

import json
import os
import random
import sys
import warnings
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

warnings.simplefilter("ignore")
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling would take longer than running

import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from sglang.benchmark import one_batch  # noqa: E402
from sglang.srt.layers.radix_attention import AttentionType  # noqa: E402
from sglang.srt.layers.rotary_embedding.rope_variant import (  # noqa: E402
    Phi3LongRoPEScaledRotaryEmbedding,
)
from sglang.srt.managers.schedule_batch import Req  # noqa: E402
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, MLATokenToKVPool  # noqa: E402
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool  # noqa: E402
from sglang.srt.model_executor.model_runner import ModelRunner  # noqa: E402
from sglang.srt.models import qwen3_next  # noqa: E402
from sglang.srt.runtime_context import SpawnRanks, publish  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from sglang.srt.server_args import PortArgs, prepare_server_args  # noqa: E402
from torch.nn.utils.rnn import pad_sequence  # noqa: E402
from transformers import (  # noqa: E402
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoModelForSequenceClassification,
)

from sglang_prefill_ext.border.model.capability import attention_layers, declined_reason, text_part  # noqa: E402
from sglang_prefill_ext.border.model.decoder_model import SglangModel  # noqa: E402
from sglang_prefill_ext.border.model.model_classes import (  # noqa: E402
    ENCODER_ARCHITECTURES,
    POSITIONS_FROM_1,
    VECTOR_ARCHITECTURES,
)
from sglang_prefill_ext.border.model.vector_models import SglangVectorModel  # noqa: E402
from sglang_prefill_ext.config import AttentionWay  # noqa: E402
from sglang_prefill_ext.errors import PackedForwardError  # noqa: E402
from sglang_prefill_ext.forward.executor import PackedExecutor  # noqa: E402
from sglang_prefill_ext.forward.graphs import replay  # noqa: E402
from sglang_prefill_ext.forward.kv_pool import (  # noqa: E402
    OwnPool,
    PrivateSlots,
    Room,
)
from sglang_prefill_ext.frontend.pack import pack_token_ids  # noqa: E402
from sglang_prefill_ext.frontend.score.score_call import pack_labels  # noqa: E402
from sglang_prefill_ext.modelmaker.weights import make_reward_model  # noqa: E402
from sglang_prefill_ext.scheduling.budget import ForwardBudget  # noqa: E402
from sglang_prefill_ext.scheduling.job import Job  # noqa: E402
from sglang_prefill_ext.scheduling.planner import plan_forward  # noqa: E402
from sglang_prefill_ext.scheduling.prefixed_forward import PrefixedForward  # noqa: E402
from sglang_prefill_ext.scheduling.split import split_request  # noqa: E402
from sglang_prefill_ext.wire.arrays import distinct_overrides  # noqa: E402
from sglang_prefill_ext.wire.packed import PackedRows  # noqa: E402
from sglang_prefill_ext.wire.read import Vectors  # noqa: E402
from tests.integration.programs.children import import_models, run_in_child  # noqa: E402
from tests.integration.programs.encoder_report import encoder_report  # noqa: E402
from tests.integration.programs.stand_ins import without_a_gpu  # noqa: E402
from tests.unit.wire.strategies import labels_by_read  # noqa: E402

VOCABULARY = 8_000
ARGS = (
    *("--device", "cpu", "--max-total-tokens", "4096"),
    *("--max-running-requests", "16", "--mem-fraction-static", "0.5", "--log-level", "error"),
    *("--disable-radix-cache", "--disable-overlap-schedule"),
)
HALF = "bfloat16"
BUDGETS = {"one_forward": 16_384, "small_budget": 64}
"""Tokens of one forward; with the small one, prefixes are computed in chunks and held."""
REPLAYED = {"Qwen3_5ForCausalLM", "Lfm2ForCausalLM", "KimiLinearForCausalLM"}
"""A model of each kind of recurrent layers that graphs replay."""
GRAPH_SIZES = [64, 256]
"""Tokens of graphs; the larger one has more than any request, and room for 16 rows."""
SHAPES = ((40, 2, 8), (7, 50, 5), (150, 9, 12), (0, 20, 4), (33, 4, 1))
"""Query tokens, most tokens of an item, items."""
READOUT_BYTES = 3 * 4 * VOCABULARY  # three rows a read-out chunk
EXACT: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
"""How Hugging Face computes."""
BORROWS = "GptOssForCausalLM"
"""The model whose experts SGLang computes only on a GPU."""
GPU_ONLY = {
    BORROWS,
    "Exaone4ForCausalLM",
    "GraniteMoeSWAForCausalLM",
    "GraniteSWAForCausalLM",
    "MiMoV2FlashForCausalLM",
}
"""Models whose attention SGLang computes only on a GPU: it has sinks, or wants another backend."""
SGLANGS_NAMES = {
    "Ernie4_5ForCausalLM": "Ernie4_5_ForCausalLM",
    "Kimi_K25ForConditionalGeneration": "KimiK25ForConditionalGeneration",
    "PhimoeForCausalLM": "PhiMoEForCausalLM",
}
"""Architectures whose name Hugging Face writes in another way than their makers, and so SGLang."""
OWN_CONFIGURATION: dict[str, dict[str, Any]] = {
    "LongcatFlashForCausalLM": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7}},
    "MiMoV2FlashForCausalLM": {"rope_parameters": None},
}
"""What the configuration class of a model's makers, which SGLang uses, lacks."""
ONE_TOKEN_LONGER = {
    "cohere2",
    "cohere2_moe",
    "exaone_moe",
    "mimo_v2_flash",
    "ministral",
    "step3p5",
}
"""Models whose window SGLang 0.5.23 takes as the number of tokens before a token, not with it."""
UNSUPPORTED_LAYERS = {
    "logit_soft_cap": {"logit_cap": 50.0, "logit_capping_method": "other"},
    "cross_attention": {"attn_type": AttentionType.ENCODER_ONLY},
    "attention_variant": {"xai_temperature_len": 1},
}


def requests() -> Iterator[PackedRows]:
    rng = random.Random(7)

    def tokens(n: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(n)]

    for query_len, longest, count in SHAPES:
        items = [tokens(rng.randint(1, longest)) for _ in range(count)]
        labels: Any = rng.sample(range(VOCABULARY), 20)
        if longest > 20:  # labels of their own for every item
            labels = [rng.sample(range(VOCABULARY), rng.randint(1, 6)) for _ in items]
        packed = pack_labels(labels, count, VOCABULARY)
        assert packed is not None
        yield pack_token_ids(tokens(query_len), items, False, packed, VOCABULARY)


def load_runner(directory: str, dtype: str, other: str = "") -> tuple[Any, Any]:
    """SGLang's model runner, with its class of the model's name or with another one."""
    (architecture,) = AutoConfig.from_pretrained(directory).architectures
    changes = {"architectures": [other or SGLANGS_NAMES.get(architecture, architecture)]}
    overridden = json.dumps(changes | OWN_CONFIGURATION.get(architecture, {}))
    model = ("--model-path", directory, "--dtype", dtype, "--json-model-override-args", overridden)
    more = ("--attention-backend", "triton") if architecture in GPU_ONLY else ()
    if architecture.endswith("Model"):
        more = ("--is-embedding",)
    args = prepare_server_args([*model, *ARGS, *more])
    args.resolve_once()
    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    one_batch._init_process_global_configs()
    with patch.object(torch, "get_device_module", lambda *_: torch.cpu):  # for Qwen3-Next
        bench_runner, tokenizer = one_batch.load_model(args, PortArgs.init_new(args), 0, 0)
    qwen3_next._is_cpu = True  # else its kernel takes minutes in Triton's interpreter
    runner = next(v for v in vars(bench_runner).values() if isinstance(v, ModelRunner))
    return runner, tokenizer


class FirstSlots:
    """Room in a pool that nobody else uses."""

    capacity = 1024

    def take(self, num_tokens: int) -> torch.Tensor:
        return torch.arange(1, 1 + num_tokens)

    def give_back(self, slots: torch.Tensor) -> None: ...


def packed(model: SglangModel, rows: PackedRows, max_tokens: int) -> dict[str, Any]:
    executor = PackedExecutor(model, readout_bytes=READOUT_BYTES)
    pieces = split_request(rows, ForwardBudget(max_tokens))
    room: Room = FirstSlots()
    if isinstance(model.pool, OwnPool):
        model.pool.capacity, room = FirstSlots.capacity, model.pool
    slots = PrivateSlots(room)
    job = Job("job", rows, pieces=pieces, large=len(pieces) > 1)
    values: list[float] = []
    while not job.launched:
        prefixed = PrefixedForward([job], slots)
        values += executor.launch(prefixed.plan).wait().tolist()
        job.next_piece += 1
    if job.held is not None:
        job.held.rollback()
    return {"forwards": len(pieces), "values": values}


def replayed(model: SglangModel, work: list[PackedRows]) -> tuple[list[Any], dict[str, Any]]:
    """The same by a graph, and how forwards ran."""
    executor = PackedExecutor(model, readout_bytes=READOUT_BYTES, attention=AttentionWay.FUSED)
    with patch.object(replay, "sizes_up_to", lambda _: GRAPH_SIZES):  # others would only take time
        executor.capture_graphs(GRAPH_SIZES[-1])
    results = []
    for rows in work:
        plan = plan_forward(split_request(rows, ForwardBudget(GRAPH_SIZES[-1])))
        results.append({"values": executor.launch(plan).wait().tolist()})
    return results, executor.graph_use.as_dict()


def overridden(runner: Any, rows: PackedRows) -> PackedRows:
    """The same rows, with every third token replaced by the model's own embedding of it."""
    tokens = rows.tokens.copy()
    embeds = text_part(runner.model).model.embed_tokens(torch.from_numpy(tokens[::3]))
    overrides, tokens[::3] = distinct_overrides(embeds.float().numpy())
    return replace(rows, tokens=tokens, overrides=overrides)


def prompts(rows: PackedRows) -> Iterator[list[int]]:
    start = rows.prefix_len
    for length in rows.suffix_lens.tolist():
        yield [*rows.tokens[: rows.prefix_len].tolist(), *rows.tokens[start : start + length]]
        start += length


def labelled(logits: torch.Tensor, rows: PackedRows) -> list[float]:
    """Label log-probs, row by row, of the rows' last logits."""
    values: list[float] = []
    for row_logits, labels in zip(logits, labels_by_read(rows), strict=False):
        values += row_logits.log_softmax(-1)[torch.tensor(labels)].tolist()
    return values


def stock_logits(runner: Any, tokenizer: Any, rows: PackedRows) -> torch.Tensor:
    """Stock prefill of all rows in one forward; `[rows, vocabulary]`."""
    requests = [stock_request(tokenizer, array("q", prompt)) for prompt in prompts(rows)]
    _, logits, _ = one_batch.extend(requests, runner)
    runner.req_to_token_pool.clear()
    runner.token_to_kv_pool_allocator.clear()
    return logits.float()


def stock_request(tokenizer: Any, ids: array[int]) -> Req:
    sampling = SamplingParams(max_new_tokens=1, temperature=0)
    sampling.normalize(tokenizer)
    request = Req(rid="0", origin_input_text="", origin_input_ids=ids, sampling_params=sampling)
    request.full_untruncated_fill_ids = request.origin_input_ids
    request.prefix_len = 0
    request.extend_end = len(ids)
    request.logprob_start_len = -1
    return request


def pools(runner: Any) -> dict[str, Any]:
    pool = runner.token_to_kv_pool
    if isinstance(pool, HybridLinearKVPool):
        pool = pool.full_kv_pool
    parts = [pool.full_kv_pool, pool.swa_kv_pool] if isinstance(pool, SWAKVPool) else [pool]
    return {
        "kv_slots": runner.token_to_kv_pool_allocator.available_size(),
        "request_rows": runner.req_to_token_pool.available_size(),
        "kv_buffers": [  # without the slots that `packed` takes, and without the unused slot 0
            buffer[1 + FirstSlots.capacity :].clone()
            for part in parts
            for buffer in kv_buffers(part)
        ],
    }


def kv_buffers(pool: Any) -> list[torch.Tensor]:
    if isinstance(pool, MLATokenToKVPool):
        return list(pool.kv_buffer)
    return [*pool.k_buffer, *pool.v_buffer]


def untouched(before: dict[str, Any], after: dict[str, Any]) -> dict[str, bool]:
    buffers = zip(before.pop("kv_buffers"), after.pop("kv_buffers"), strict=True)
    same = {name: before[name] == after[name] for name in before}
    return {**same, "kv_buffers": all(len(a) > 0 and torch.equal(a, b) for a, b in buffers)}


def declined(runner: Any, **changes: bool) -> str | None:
    scheduler = {"enable_lora": False, "is_generation": runner.is_generation, **changes}
    return declined_reason(
        SimpleNamespace(tp_worker=SimpleNamespace(model_runner=runner), **scheduler)
    )


def declined_if_changed(runner: Any) -> dict[str, str | None]:
    """Why this model would be declined with each unsupported kind of last layer, or of server."""
    layer = attention_layers(runner.model)[-1]
    reasons = {}
    for name, changes in UNSUPPORTED_LAYERS.items():
        before = {attribute: getattr(layer, attribute) for attribute in changes}
        vars(layer).update(changes)
        reasons[name] = declined(runner)
        vars(layer).update(before)
    kind = type(runner.model)
    runner.model.__class__ = type("OtherForCausalLM", (kind,), {})
    reasons["model_architecture"] = declined(runner)
    runner.model.__class__ = kind
    factors = [1.0] * 16
    runner.model.rotary = Phi3LongRoPEScaledRotaryEmbedding(
        32, 32, 8192, 4096, 10_000, True, torch.float32, factors, factors
    )
    reasons["long_rope"] = declined(runner)
    del runner.model.rotary
    return reasons


@torch.inference_mode()
def numbers(runner: Any, tokenizer: Any, directory: str) -> dict[str, Any]:
    config = reference_config(directory)
    sees = not {"vision_config", "thinker_config"}.isdisjoint(config.sub_configs)
    kind = AutoModelForMultimodalLM if sees else AutoModelForCausalLM
    reference = kind.from_pretrained(directory, config=config, **EXACT).eval()
    reference = getattr(reference, "thinker", reference)
    for part, module in reference.named_modules():
        if part.endswith("kv_a_layernorm") or part.endswith("q_a_layernorm"):
            # Hugging Face adds 1e-6 in these two norms, whatever the configuration says.
            module.variance_epsilon = config.get_text_config().rms_norm_eps
    name = type(runner.model).__name__
    runs_here = name not in GPU_ONLY
    if name == BORROWS:
        borrow_experts(runner.model, reference)
    work = list(requests())
    stock = [stock_logits(runner, tokenizer, rows) for rows in work * runs_here]
    before = pools(runner)  # not blank: stock prefill has written to the slots
    model = SglangModel(runner, None)
    results = {
        name: [packed(model, rows, budget) for rows in work] for name, budget in BUDGETS.items()
    }
    refused = refused_overrides(model, overridden(runner, work[0]))
    if not refused:
        results["overridden"] = [packed(model, overridden(runner, rows), 64) for rows in work]
    unchanged = untouched(before, pools(runner))
    graphs = {}
    if name in REPLAYED:
        results["graphs"], graphs = replayed(model, work)
    hugging_face = [exact_logits(reference, rows, first=name in POSITIONS_FROM_1) for rows in work]
    return {
        "vectors": vectors(runner, lambda prompt: embedding_of(reference.model)(prompt)),
        "row_labels": [rows.read.lens_of(0, rows.num_rows).tolist() for rows in work],
        "forwards": {name: [r["forwards"] for r in results[name]] for name in BUDGETS},
        "packed": {name: [r["values"] for r in each] for name, each in results.items()},
        "stock": [labelled(logits, rows) for logits, rows in zip(stock, work, strict=False)],
        "hugging_face": [labelled(*pair) for pair in zip(hugging_face, work, strict=True)],
        "untouched": unchanged,
        "refused": refused,
        "graphs": graphs,
    }


def refused_overrides(model: SglangModel, rows: PackedRows) -> str:
    """Why the model takes no embeddings in place of tokens; empty if it does."""
    try:
        packed(model, rows, 64)
    except PackedForwardError as error:
        return str(error)
    return ""


def exact_logits(reference: Any, rows: PackedRows, *, first: int) -> torch.Tensor:
    """Hugging Face's logits behind every row; `[rows, vocabulary]`.

    One forward computes all rows. No token sees what fills up the shorter ones behind it.

    Args:
        first: position of the first token. Scores depend on differences of positions only, but
            the float32 angles of rotary embeddings are rounded.
    """
    ids = pad_sequence([torch.tensor(prompt) for prompt in prompts(rows)], batch_first=True)
    positions = {"position_ids": torch.arange(ids.shape[1])[None] + first} if first else {}
    ends = torch.from_numpy(rows.prefix_len + rows.suffix_lens - 1).long()
    logits: torch.Tensor = reference(ids, **positions).logits[torch.arange(len(ids)), ends].float()
    return logits


def borrow_experts(model: Any, reference: Any) -> None:
    """Replace SGLang's experts, which run only on a GPU, by Hugging Face's."""
    for layer, other in zip(model.model.layers, reference.model.layers, strict=True):
        layer.mlp.forward = partial(_first_of, other.mlp)


def _first_of(experts: Any, hidden: torch.Tensor, _batch: Any) -> torch.Tensor:
    out, _ = experts(hidden[None])
    return out[0]


def reference_config(directory: str) -> Any:
    config = AutoConfig.from_pretrained(directory)
    text = config.get_text_config()
    if text.model_type in ONE_TOKEN_LONGER:
        text.sliding_window += 1
    return config


def embedding_of(layers: Any) -> Callable[[list[int]], torch.Tensor]:
    """The last token's final state, at unit length."""

    def embed(prompt: list[int]) -> torch.Tensor:
        state: torch.Tensor = layers(torch.tensor([prompt])).last_hidden_state[0, -1]
        return state / state.norm()

    return embed


@torch.inference_mode()
def vectors(runner: Any, wanted: Callable[[list[int]], torch.Tensor]) -> dict[str, Any]:
    """Vectors of all rows, packed with both budgets, and of Hugging Face; `[rows, width]`."""
    if type(runner.model).__name__ not in VECTOR_ARCHITECTURES:
        return {}
    model = SglangVectorModel(runner, None)
    work = [replace(rows, read=Vectors(model.vector_width)) for rows in requests()]
    found = {
        name: [value for rows in work for value in packed(model, rows, budget)["values"]]
        for name, budget in BUDGETS.items()
    }
    found["overridden"] = [
        value for rows in work for value in packed(model, overridden(runner, rows), 64)["values"]
    ]
    exact = [wanted(prompt).tolist() for rows in work for prompt in prompts(rows)]
    shape = (len(exact), model.vector_width)
    return {name: np.reshape(values, shape).tolist() for name, values in found.items()} | {
        "hugging_face": exact
    }


def vector_model(directory: str) -> Callable[[list[int]], torch.Tensor]:
    """Hugging Face's model without a language head: classes, a reward, or an embedding."""
    (architecture,) = AutoConfig.from_pretrained(directory).architectures
    if architecture.endswith("ForRewardModel"):
        config = AutoConfig.from_pretrained(directory)
        reference = AutoModelForSequenceClassification.from_config(config, **EXACT).eval()
        make_reward_model(reference)
        reference.load_state_dict(load_file(Path(directory) / "model.safetensors"))
    elif architecture.endswith("Model"):
        return embedding_of(AutoModel.from_pretrained(directory, **EXACT).eval())
    else:
        kind = AutoModelForSequenceClassification
        reference = kind.from_pretrained(directory, **EXACT).eval()
    return lambda prompt: reference(torch.tensor([prompt])).logits[0]


def report(directory: str, how: str, out: Path) -> None:
    torch.set_num_threads(1)
    dtype, other = (HALF, "") if how == HALF else ("float32", how)
    runner, tokenizer = load_runner(directory, dtype, other)
    result: dict[str, Any] = {"declined": declined(runner)}
    if type(runner.model).__name__ in ENCODER_ARCHITECTURES:
        with torch.inference_mode():
            result |= encoder_report(runner, directory, packed)
    elif not result["declined"] and not runner.is_generation:
        result["vectors"] = vectors(runner, vector_model(directory))
    elif not result["declined"]:
        result |= numbers(runner, tokenizer, directory)
        result["declined_if"] = declined_if_changed(runner)
    out.write_text(json.dumps(result))


def main() -> None:
    out, *models = sys.argv[1:]
    without_a_gpu()
    import_models()
    for model in models:
        how, _, directory = model.rpartition(":")
        path = Path(out) / f"{Path(directory).name}{'-' * bool(how)}{how}.json"
        run_in_child(directory, report, directory, how, path)


if __name__ == "__main__":
    main()
