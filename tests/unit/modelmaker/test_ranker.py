from collections.abc import Sequence
from typing import cast

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from sglang_prefill_ext.modelmaker import catalogue, ranker
from sglang_prefill_ext.modelmaker.catalogue import (
    Item,
    Query,
    item_part,
    ndcg,
    query_part,
    relevance,
)
from sglang_prefill_ext.modelmaker.preset import CONTEXT_LENGTH, VOCABULARY
from sglang_prefill_ext.modelmaker.presets import PRESETS
from sglang_prefill_ext.modelmaker.tokenizer import label_ids, train_tokenizer
from sglang_prefill_ext.modelmaker.weights import build_model


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(VOCABULARY, CONTEXT_LENGTH)


@pytest.fixture(scope="module")
def ranker_of_some_steps(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A third of the training of the demo's model: enough to see that it learns."""
    return _trained(tokenizer, seed=0, steps=ranker.STEPS // 3)


def test_training_is_deterministic_and_keeps_the_callers_threads(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    first, again, other = (_trained(tokenizer, seed) for seed in (0, 0, 1))
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_a_trained_ranker_orders_unseen_queries(
    tokenizer: PreTrainedTokenizerFast, ranker_of_some_steps: PreTrainedModel
) -> None:
    queries = catalogue.queries("test")[:10]
    untrained = build_model(PRESETS["ranker"], tokenizer, seed=0).eval()
    assert mean_ndcg(untrained, tokenizer, queries) < 0.15
    assert mean_ndcg(ranker_of_some_steps, tokenizer, queries) >= 0.3


def test_a_trained_ranker_answers_with_a_label(
    tokenizer: PreTrainedTokenizerFast, ranker_of_some_steps: PreTrainedModel
) -> None:
    query, item = catalogue.queries("test")[0], catalogue.items()[0]
    prompt = catalogue.query_part(query.text) + catalogue.item_part(item.text)
    with torch.inference_mode():
        logits = ranker_of_some_steps(torch.tensor([tokenizer.encode(prompt)])).logits[0, -1]
    assert logits.softmax(-1)[list(label_ids(tokenizer))].sum() > 0.99


def test_scores_do_not_depend_on_the_company(tokenizer: PreTrainedTokenizerFast) -> None:
    model = _trained(tokenizer, seed=0)
    query, items = catalogue.queries("test")[0], catalogue.items()[::40]
    together = scores(model, tokenizer, query, items)
    alone = [scores(model, tokenizer, query, [item])[0] for item in items]
    assert together == pytest.approx(alone, abs=1e-5)
    assert all(0 < score < 1 for score in together)


def _trained(tokenizer: PreTrainedTokenizerFast, seed: int, steps: int = 3) -> PreTrainedModel:
    model = build_model(PRESETS["ranker"], tokenizer, seed)
    ranker.train(model, tokenizer, seed, steps=steps, progress=lambda _: None)
    return model


@torch.inference_mode()
def scores(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, query: Query, items: Sequence[Item]
) -> list[float]:
    """The probability of "yes" against "no" for every item, in [0, 1]."""
    prompts = [tokenizer.encode(query_part(query.text) + item_part(item.text)) for item in items]
    log_probs = ranker.next_token_log_probs(model, prompts)[:, list(label_ids(tokenizer))]
    return cast("list[float]", log_probs.softmax(-1)[:, 0].tolist())


def mean_ndcg(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, queries: Sequence[Query]
) -> float:
    """Mean NDCG@10 of ranking the whole catalogue by `scores`, over `queries`."""
    items, total = catalogue.items(), 0.0
    for query in queries:
        graded = zip(scores(model, tokenizer, query, items), items, strict=True)
        ranked = sorted(graded, key=lambda pair: pair[0], reverse=True)
        total += ndcg([relevance(query, item) for _, item in ranked], 10)
    return total / len(queries)
