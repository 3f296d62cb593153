"""Tokenized requests as SGLang's front end makes them, and a scheduler with a toy language."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np

from sglang_prefill_ext.border.grammars import GRAMMARS
from sglang_prefill_ext.border.tokenizer_manager import request_fields
from sglang_prefill_ext.wire.arrays import Float32Array
from sglang_prefill_ext.wire.packed import PackedRows
from tests.unit.wire.strategies import labels_by_read

VOCAB = 12

_SAMPLING = dict.fromkeys(request_fields._UNPACKED_SAMPLING) | {
    "max_new_tokens": 1,
    "n": 1,
    "top_k": 1,
    "beam_width": None,
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "sampling_seed": None,
    "logit_bias": None,
    "min_new_tokens": 0,
    **dict.fromkeys(GRAMMARS),
    "ebnf_full_assistant": False,
}
_FIELDS = dict.fromkeys(request_fields._UNPACKED_OF_TOKENS) | dict.fromkeys(
    (*request_fields._UNPACKED_SWITCHES, "require_reasoning"), False
)


def tokenized(ids: list[int], *, sampling: dict[str, Any] | None = None, **fields: Any) -> Any:
    """A request for one greedy token, unless `sampling` says otherwise."""
    known = {
        "rid": "r",
        "input_ids": array("q", ids),
        "return_logprob": False,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "token_ids_logprob": None,
        "lora_id": None,
        "sampling_params": SimpleNamespace(**_SAMPLING | (sampling or {})),
    }
    return SimpleNamespace(**_FIELDS | known | fields)


class NoGrammars:
    """Stands in for `Grammars`, for requests that have none."""

    async def first_tokens(self, *_asked: Any) -> None:
        return None


def log_probs(context: list[int]) -> Float32Array:
    """Log-probs of the next token in the toy language; they differ for all contexts."""
    seed = sum((place + 1) * 31**token for place, token in enumerate(context)) % 2**32
    table = np.random.default_rng([seed, len(context)]).random(VOCAB, dtype=np.float32)
    return -table


def heated(table: Float32Array, temperature: float) -> Float32Array:
    """The unnormalised log-probs by which a token is drawn."""
    return (table / temperature).astype(np.float32)


def values_of(rows: PackedRows) -> list[float]:
    """The answer of a scheduler to packed rows, as `PackedRows` describes it.

    A draw gives the least probable token.
    """
    prefix = rows.tokens[: rows.prefix_len].tolist()
    contexts = [
        prefix[: rows.prefix_len - rows.prefix_reads + n + 1] for n in range(rows.prefix_reads)
    ]
    reads = rows.read_lens if len(rows.read_lens) else np.ones(rows.num_rows, dtype=np.int32)
    place = rows.prefix_len
    for length, count in zip(rows.suffix_lens.tolist(), reads.tolist(), strict=True):
        row = prefix + rows.tokens[place : place + length].tolist()
        contexts += [row[: len(row) - count + n + 1] for n in range(count)]
        place += length
    labels = labels_by_read(rows)
    values: list[float] = []
    draws = () if rows.read.sampling is None else rows.read.sampling.draws
    drawn = dict(zip(rows.read_starts()[1:] - 1, draws, strict=False))
    for number, (context, own) in enumerate(zip(contexts, labels, strict=True)):
        table = log_probs(context)
        if number in drawn:
            table = heated(table, drawn[number]["temperature"])
        values += table[own].tolist()
        if rows.read.num_best:
            order = np.argsort(-table, kind="stable")[: rows.read.num_best - 1]
            best = int(table.argmin() if number in drawn else table.argmax())
            values += [float(table[best]), best, *table[order].tolist(), *order.tolist()]
    return values
