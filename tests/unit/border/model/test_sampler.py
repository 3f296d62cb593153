"""Draws of packed reads against SGLang's own: the same requests, the same random numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.constrained.base_grammar_backend import GrammarMask
from sglang.srt.environ import Envs
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.sampler import Sampler
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams
from torch import Tensor

from sglang_prefill_ext.border.model.sampler import SglangSampler, batch_info
from sglang_prefill_ext.forward.logits import values_by_chunk
from sglang_prefill_ext.forward.memory import peak_bytes
from sglang_prefill_ext.forward.readers.labels import DRAW_MEMORY, best_tokens, drawn_tokens
from sglang_prefill_ext.frontend.token.first_tokens import FirstTokens
from sglang_prefill_ext.frontend.token.token_call import token_call_of
from sglang_prefill_ext.wire.sampling import Sampling
from tests.unit.frontend.token.token_requests import tokenized
from tests.unit.wire.strategies import reads_of

VOCAB, READS = 60, 40
STOP_TOKENS = {3, 9}
EOS = SimpleNamespace(eos_token_id=3, additional_stop_token_ids=None)

PENALTIES = {"frequency_penalty": 1.0, "presence_penalty": -1.0, "repetition_penalty": 1.7}

# What the parameters of a batch are chosen from; all of a batch are of one `Draw`.
CHOICES: dict[str, dict[str, list[Any]]] = {
    "greedy": {"temperature": [0.0]},
    "plain": {"temperature": [0.2, 1.0, 3.0]},
    "filtered": {"temperature": [0.5, 1.0], "top_p": [0.3, 0.9], "top_k": [-1, 2, 7]},
    "top k": {"temperature": [2.0], "top_k": [2, 7, 30]},
    "min p": {"temperature": [1.0], "min_p": [0.05, 0.4]},
}


@dataclass
class Batch:
    """The fields of a stock batch that a sampler reads."""

    reqs: list[Any]
    device: str = "cpu"


def hashed(seeds: Tensor, positions: Tensor, columns: Tensor) -> Tensor:
    """Stands in for a hash for which SGLang has kernels only; ``[reads, columns]``."""
    mixed = (seeds.view(torch.int64) * 31 + positions)[:, None] * 1_000_003 + columns * 7_919
    mixed = (mixed ^ (mixed >> 29)) * 668_265_263
    return (mixed ^ (mixed >> 31)) & 0xFFFF_FFFF


@pytest.fixture(params=[False, True], ids=["random", "deterministic"])
def sampler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sampler]:
    monkeypatch.setattr("sglang.srt.layers.sampler.murmur_hash32", hashed)
    flags = {"sampling_backend": "pytorch", "enable_deterministic_inference": request.param}
    with ExitStack() as entered:
        entered.enter_context(torch.compiler.set_stance("force_eager"))
        entered.enter_context(get_context().override_server_args(**flags))
        group = SimpleNamespace(device_group=None)
        entered.enter_context(get_parallel().override(tp_group=group))
        yield Sampler()


def params_of(kind: str) -> list[SamplingParams]:
    """Parameters of one kind that need a sampler."""
    choices, rng = CHOICES[kind], random.Random(7)

    def one() -> SamplingParams:
        given = {name: rng.choice(values) for name, values in choices.items()}
        given |= rng.choice([{}, {"sampling_seed": rng.randrange(-(2**63), 2**63)}])
        bias = {str(rng.randrange(VOCAB)): rng.uniform(-5, 5), "9": 8.0}
        given |= rng.choice([{}, {"logit_bias": bias}])
        given |= rng.choice([{}, {"min_new_tokens": 1}, PENALTIES])
        return SamplingParams(max_new_tokens=1, **given)

    params = [one() for _ in range(READS)]
    return [p for p in params if kind != "greedy" or p.logit_bias or p.min_new_tokens]


def stock_info(params: list[SamplingParams]) -> SamplingBatchInfo:
    requests = [
        SimpleNamespace(
            sampling_params=each,
            custom_logit_processor=None,
            return_sampling_mask=False,
            sampling_logprobs_mode=None,
            eos_token_ids=STOP_TOKENS,
            tokenizer=EOS,
        )
        for each in params
    ]
    batch = Batch(requests)
    info = SamplingBatchInfo.from_schedule_batch(batch, VOCAB)
    info.update_penalties()  # while the batch lives, to which they refer
    return info.copy_for_forward()


def packed(params: list[SamplingParams]) -> Sampling:
    asked = {"return_logprob": True, "top_logprobs_num": 2}
    calls = [
        token_call_of(tokenized([1], **asked | {"sampling_params": each}), STOP_TOKENS)
        for each in params
    ]
    return Sampling.joined(call.sampling for call in calls)


def random_logits() -> Tensor:
    return 3 * torch.randn(READS, VOCAB, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", CHOICES)
def test_tokens_and_log_probs_are_those_of_a_stock_batch(kind: str, sampler: Sampler) -> None:
    params = params_of(kind)
    reads = len(params)
    listed = [[number, 5] for number in range(reads)]
    positions = torch.arange(reads) * 7

    ours = SglangSampler(SimpleNamespace(sampler=sampler))
    torch.manual_seed(3)
    if kind == "min p" and sampler.enable_deterministic:
        with pytest.raises(AssertionError, match="sampling seed"):  # SGLang's refusal
            ours.draw(random_logits()[:reads], packed(params), positions, 2, listed)
        return
    of_listed, best = ours.draw(random_logits()[:reads], packed(params), positions, 2, listed)

    torch.manual_seed(3)
    info, output = stock_info(params), LogitsProcessorOutput(random_logits()[:reads])
    info.apply_logits_bias(output.next_token_logits)
    tokens = sampler(output, info, True, [2] * reads, listed, positions)

    assert best.token[:, 0].tolist() == tokens.tolist()
    assert best.log_prob[:, 0].tolist() == output.next_token_logprobs.tolist()
    wanted = (output.next_token_top_logprobs_val, output.next_token_top_logprobs_idx)
    for found, stock in zip((best.top_log_probs, best.top_tokens), wanted, strict=True):
        assert found.tolist() == torch.stack(stock).tolist()
    assert of_listed.tolist() == torch.cat(output.next_token_token_ids_logprobs_val).tolist()
    forbidding = [row for row, each in enumerate(params) if each.min_new_tokens]
    assert forbidding
    assert not STOP_TOKENS & {int(best.token[row]) for row in forbidding}


@pytest.mark.parametrize("kind", CHOICES)
@pytest.mark.parametrize("num_allowed", [2, VOCAB - 2])
def test_a_grammar_forbids_the_tokens_that_it_forbids_in_a_stock_batch(
    kind: str, num_allowed: int, sampler: Sampler
) -> None:
    params = params_of(kind)
    reads, positions = len(params), torch.arange(len(params))
    ours = SglangSampler(SimpleNamespace(sampler=sampler))
    order = torch.rand(reads, VOCAB, generator=torch.Generator().manual_seed(5)).argsort(dim=-1)
    is_allowed = order < num_allowed

    asked = {"return_logprob": True, "top_logprobs_num": 2}
    firsts = [FirstTokens.of(each.numpy()) for each in is_allowed]
    calls = [
        token_call_of(tokenized([1], **asked | {"sampling_params": each}), STOP_TOKENS, first)
        for each, first in zip(params, firsts, strict=True)
    ]
    sampling = Sampling.joined(call.sampling for call in calls)
    torch.manual_seed(3)
    listed: list[list[int]] = [[] for _ in params]
    if kind == "min p" and sampler.enable_deterministic:
        with pytest.raises(AssertionError, match="sampling seed"):  # SGLang's refusal
            ours.draw(random_logits()[:reads], sampling, positions, 2, listed)
        return
    _, best = ours.draw(random_logits()[:reads], sampling, positions, 2, listed)

    torch.manual_seed(3)
    info, output = stock_info(params), LogitsProcessorOutput(random_logits()[:reads])
    forbids = SimpleNamespace(
        apply_vocab_mask=lambda logits, vocab_mask: logits.masked_fill_(vocab_mask, -torch.inf)
    )
    info.grammar_mask = GrammarMask(forbids, ~is_allowed)
    info.apply_logits_bias(output.next_token_logits)
    tokens = sampler(output, info, True, [2] * reads, [None] * reads, positions)
    assert best.token[:, 0].tolist() == tokens.tolist()
    assert best.log_prob[:, 0].tolist() == output.next_token_logprobs.tolist()
    stock = torch.stack(output.next_token_top_logprobs_val)
    assert best.top_log_probs.tolist() == stock.tolist()


@pytest.mark.parametrize("kind", CHOICES)
def test_a_sampler_is_told_of_packed_reads_what_it_is_told_of_requests(
    kind: str, sampler: Sampler
) -> None:
    params = params_of(kind)
    stock, ours = stock_info(params), batch_info(packed(params), random_logits()[: len(params)])
    told_otherwise = {"logit_bias", "acc_additive_penalties", "acc_scaling_penalties"}
    unused = {"return_sampling_masks", "return_sampling_support_logprobs", "sampling_mask_top_ks"}
    npu_only = {"npu_top_k_top_p_eligible"}
    for field in fields(SamplingBatchInfo):
        if field.name in told_otherwise | unused | npu_only:
            continue
        wanted, found = getattr(stock, field.name), getattr(ours, field.name)
        if isinstance(wanted, Tensor):
            assert found.dtype == wanted.dtype, field.name
            assert found.tolist() == wanted.tolist(), field.name
        else:
            assert found == wanted, field.name


def test_draws_take_no_more_memory_than_other_reads_and_none_that_grows(sampler: Sampler) -> None:
    vocabulary, chunk = 20_000, 32
    head, (params, *_) = torch.randn(4, vocabulary), params_of("filtered")
    model: Any = SglangSampler(SimpleNamespace(sampler=sampler))

    def peak(reads: int, most: int, *, drawn: bool) -> int:
        hidden, asked = torch.randn(reads, 4), reads_of([[5]] * reads)
        draw = drawn_tokens(3, model, packed([params] * reads), np.arange(reads))
        pick = draw if drawn else best_tokens(3)

        def read() -> Tensor:
            return values_by_chunk(hidden, asked, lambda some: some @ head, most, pick)

        return peak_bytes(torch.device("cpu"), read)

    few, many = (peak(reads, chunk // DRAW_MEMORY, drawn=True) for reads in (64, 256))
    assert many - few < 4 * vocabulary
    assert many < 1.5 * peak(256, chunk, drawn=False)


def test_a_draw_without_questions_has_no_more_to_say(sampler: Sampler) -> None:
    params = params_of("plain")
    ours = SglangSampler(SimpleNamespace(sampler=sampler))
    positions = torch.arange(READS)
    of_listed, best = ours.draw(random_logits(), packed(params), positions, 0, [[]] * READS)
    assert best.top_log_probs.shape == best.top_tokens.shape == (READS, 0)
    assert of_listed.shape == (0,)


@pytest.mark.parametrize("kind", ["plain", "filtered"])
def test_a_draw_from_nan_shows_where_sglang_replaces_it(kind: str, sampler: Sampler) -> None:
    params = params_of(kind)
    logits, nothing = random_logits(), [[] for _ in range(READS)]
    logits[3, 5] = torch.nan
    with Envs.SGLANG_SANITIZE_NAN_LOGITS.override(True):
        ours = SglangSampler(SimpleNamespace(sampler=sampler))
        _, best = ours.draw(logits, packed(params), torch.arange(READS), 0, nothing)
    assert best.log_prob[:, 0].isnan().nonzero().tolist() == [[3]]
