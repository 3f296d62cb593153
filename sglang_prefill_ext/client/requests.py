"""Plans a user's call as requests of limited size, and how to join their answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.client.answers import (
    Scores,
    join_scores,
    read_classes,
    read_embeddings,
    read_scores,
)
from sglang_prefill_ext.client.arrays import EmbedOverrides, Ids, as_forms, as_json, token_ids
from sglang_prefill_ext.client.kinds import checked, is_list
from sglang_prefill_ext.errors import RequestError

Prompt = str | Sequence[int] | NDArray[np.integer]
"""A text, or token ids."""
Prompts = Sequence[str] | Sequence[Sequence[int]] | Sequence[NDArray[np.integer]]
Labels = Sequence[int] | Sequence[Sequence[int]] | NDArray[np.integer]
"""Label token ids of all items ``[labels]``, or of each item ``[items, labels]``."""

SCORE_PATH = "/v1/score"

AnswerT = TypeVar("AnswerT")
Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Request(Generic[AnswerT]):
    """One POST.

    Attributes:
        path: of the route.
        body: its fields; token ids of prompts and embeddings are arrays, all else is JSON.
        items: how many items or prompts it holds.
        read: turns the parsed answer and `items` into what was asked for.
    """

    path: str
    body: dict[str, Any]
    items: int
    read: Callable[[Any, int], AnswerT]

    def content(self, *, arrays: bool) -> bytes:
        """The body as JSON.

        Args:
            arrays: write token ids as base64, on the route that has such a form.
        """
        body = as_forms(self.body) if arrays and self.path == SCORE_PATH else self.body
        return json.dumps(body, separators=(",", ":"), default=as_json).encode()

    @property
    def asked(self) -> str:
        """What it asks for, for messages."""
        return f"{self.path} with {self.items} item{'s' * (self.items != 1)}"


@dataclass(frozen=True, slots=True)
class Plan(Generic[AnswerT]):
    """The requests of one call, at least one, and what joins their answers, in the same order."""

    requests: tuple[Request[AnswerT], ...]
    join: Callable[[Sequence[AnswerT]], AnswerT]


def plan_score(
    query: Prompt,
    items: Prompts,
    label_token_ids: Labels | None,
    *,
    max_items: int,
    embed_overrides: EmbedOverrides | None = None,
    **fields: float,
) -> Plan[Scores]:
    """Plan the scoring of items.

    Args:
        fields: further fields of the body.

    Raises:
        RequestError: an argument is of the wrong kind; the message names it.
    """
    shared = {"query": _plain("query", query)} | fields
    listed = _listed("items", items)
    _of_one_kind("query and items", shared["query"], listed[0])
    labels = _labels(label_token_ids, len(listed))
    per_item = bool(labels) and isinstance(labels[0], list)
    requests = []
    for part in _parts(len(listed), max_items):
        own = labels[part] if per_item else labels
        body = shared | {"items": listed[part], "label_token_ids": own or None}
        if embed_overrides is not None:
            overrides = checked("embed_overrides", embed_overrides, EmbedOverrides)
            body |= overrides.fields(part, len(listed))
        requests.append(Request(SCORE_PATH, body, len(listed[part]), read_scores))
    each = len(labels[0] if per_item else labels)
    return Plan(tuple(requests), partial(join_scores, labels=each))


def plan_embed(
    prompts: Prompts, *, max_items: int, dimensions: int | None, adapter: str | None = None
) -> Plan[Vectors]:
    """Plan the embedding of prompts; raises as `plan_score` does."""
    shared: dict[str, Any] = {"encoding_format": "base64"} | _adapter(adapter)
    if dimensions is not None:
        shared["dimensions"] = checked("dimensions", dimensions, int)
    listed = _listed("prompts", prompts)
    bodies = (shared | {"input": listed[part]} for part in _parts(len(listed), max_items))
    requests = (
        Request("/v1/embeddings", body, len(body["input"]), read_embeddings) for body in bodies
    )
    return Plan(tuple(requests), np.concatenate)


def plan_classify(prompts: Prompts, *, max_items: int, adapter: str | None = None) -> Plan[Vectors]:
    """Plan the classification of prompts; raises as `plan_score` does."""
    listed = _listed("prompts", prompts)
    field = "text" if isinstance(listed[0], str) else "input_ids"
    chunks = (listed[part] for part in _parts(len(listed), max_items))
    requests = (
        Request("/classify", {field: chunk} | _adapter(adapter), len(chunk), read_classes)
        for chunk in chunks
    )
    return Plan(tuple(requests), np.concatenate)


def _adapter(name: str | None) -> dict[str, str]:
    given = "" if name is None else _text("adapter", name)
    return {"lora_path": given} if given else {}


def _parts(count: int, most: int) -> Iterator[slice]:
    return (slice(start, start + most) for start in range(0, count, most))


def _listed(field: str, prompts: Any) -> list[str | Ids]:
    """Texts or token ids, at least one."""
    if not is_list(prompts):
        raise RequestError(f"{field}: {prompts!r:.80} is not a list. Put one prompt into a list.")
    listed = [_plain(f"{field}[{i}]", prompt) for i, prompt in enumerate(prompts)]
    if not listed:
        raise RequestError(f"{field}: the list is empty. Give at least one.")
    _of_one_kind(field, *listed)
    return listed


def _of_one_kind(field: str, *prompts: Any) -> None:
    """Refuse texts beside token ids, which SGLang would score as the text of a list."""
    if len({isinstance(prompt, str) for prompt in prompts}) == 2:
        raise RequestError(f"{field}: both texts and token ids. Use one of the two in a call.")


def _plain(field: str, prompt: Prompt) -> str | Ids:
    if isinstance(prompt, str):
        return _text(field, prompt)
    return token_ids(field, prompt, dimensions=(1,))


def _text(field: str, text: str) -> str:
    """The text; raises RequestError if it is no Unicode."""
    try:
        checked(field, text, str).encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{field}: {text!r:.80} has lone surrogates, which no tokenizer reads ({error.reason} "
            f"at {error.start}). Send whole characters."
        ) from error
    return text


def _labels(labels: Labels | None, items: int) -> list[Any]:
    """Labels as lists; empty for the classes of a classification model."""
    if labels is None:
        return []
    plain: list[Any] = token_ids("label_token_ids", labels, dimensions=(1, 2)).tolist()
    if plain and isinstance(plain[0], list) and len(plain) != items:
        raise RequestError(
            f"label_token_ids: {len(plain)} lists for {items} items. "
            "Give one list for each item, or one flat list for all."
        )
    return plain
