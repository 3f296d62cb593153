"""Requests that attack a server's memory, its event loop, or other clients' requests."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tests.integration.support.client import VOCABULARY, Json
from tests.integration.support.override_bodies import HIDDEN, PLACEHOLDER

MOST_ITEMS = 400
"""The limit of the shared server."""

REFUSED = frozenset({400})
TYPED = {"content-type": "application/json"}
TIMEOUT, PRIORITY = "x-prefill-only-timeout-ms", "x-prefill-only-priority"


class Hostile(NamedTuple):
    """One request, and the statuses with which it may be answered."""

    name: str
    path: str
    content: bytes
    statuses: frozenset[int] = REFUSED
    headers: dict[str, str] = {}  # noqa: RUF012 (never changed)


def requests() -> Iterator[Hostile]:
    """Yield all requests; each is made only when it is needed, because some are large."""
    yield from _of_sizes()
    yield from _of_arrays()
    yield from _of_overrides()
    yield from _of_answers()
    yield from _of_names()
    yield from _of_headers()
    yield from _of_other_routes()


def _score(name: str, *statuses: int, **fields: Any) -> Hostile:
    body = {"query": [5], "items": [[7]], "label_token_ids": [5, 9]} | fields
    return _hostile(name, "/v1/score", body, *statuses)


def _hostile(name: str, path: str, body: Any, *statuses: int) -> Hostile:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Hostile(name, path, content, frozenset(statuses) or REFUSED)


def _base64(array: Any, dtype: str = "<i4") -> str:
    return base64.b64encode(np.asarray(array, dtype).tobytes()).decode()


def _ids(values: Any) -> Json:
    return {"values": _base64(values)}


def _rows(values: Any, counts: Any) -> Json:
    return {"values": _base64(values), "counts": _base64(counts)}


def _of_sizes() -> Iterator[Hostile]:
    """Small bodies that would become large requests."""
    items = [[7]] * MOST_ITEMS
    for first in (True, False):
        more = {"item_first": first}
        yield _score(f"long query, lists, {first}", query=[5] * 100_000, items=items, **more)
        yield _score(
            f"long query, arrays, {first}",
            query=_ids([5] * 1_000_000),
            items=_rows([7] * MOST_ITEMS, [1] * MOST_ITEMS),
            **more,
        )
        yield _score(f"long text, {first}", query="a b " * 40_000, items=["c"] * 200, **more)
        yield _score(f"text without a cut, {first}", query="x" * 300_000, items=["c"] * 200, **more)
        yield _score(f"long items, {first}", items=[[5] * 40_000] * 20, **more)
        yield _score(f"empty items, {first}", query=[5] * 100_000, items=[[]] * MOST_ITEMS, **more)
    yield _score("cut at the wrong end", query="a b " + "x" * 300_000, items=["c"] * 200)
    yield _score("long text of one item", query="a b " * 200_000, items="c")
    for count in (MOST_ITEMS + 1, 300_000):
        yield _score(f"{count} items", items=[[7]] * count)
        yield _score(f"{count} texts", query="a", items=["b"] * count)
        yield _score(
            f"{count} items and labels", items=[[7]] * count, label_token_ids=[[5]] * count
        )
    yield _score("labels of the vocabulary, twice", label_token_ids=[*range(VOCABULARY)] * 2)
    yield _score("labels for items that are not there", label_token_ids=[[5]] * 300_000)
    yield _score("a million labels", label_token_ids=[5] * 1_000_000)
    yield _score("deep items", items=json.loads("[" * 500 + "]" * 500))
    yield _hostile("deep body", "/v1/score", b"[" * 1_000_000)
    yield _hostile("deep object", "/v1/score", b'{"items":' * 100_000)
    yield _hostile("one large number", "/v1/score", b'{"query":[%s]}' % (b"9" * 100_000))
    yield _hostile("many fields", "/v1/score", {f"f{number}": 1 for number in range(200_000)})
    yield _hostile("megabytes of spaces", "/v1/score", b" " * 8_000_000)
    yield _hostile(
        "one field again and again", "/v1/score", b'{%s"a":1}' % (b'"items":[],' * 90_000)
    )


def _of_arrays() -> Iterator[Hostile]:
    many = 2_000_000
    yield _score("rows of an array", query=None, items=_rows([7] * many, [1] * many))
    yield _score("empty rows of an array", items=_rows([], [0] * many), query=_ids([5]))
    yield _score("a list beside an array", items=_rows([7] * many, [1] * many))
    for name, counts in (
        ("counts that lie", [2]),
        ("a negative count", [2, -1]),
        ("counts that overflow", [2**31 - 1, 2**31 - 1, 3]),
        ("no counts", []),
    ):
        yield _score(name, query=_ids([5]), items=_rows([7], counts))
    for name, values in (
        ("no base64", "****"),
        ("half a number", "AAA="),
        ("a number", 5),
        ("a list", [5]),
        ("nothing", None),
        ("an array in an array", {"values": "AAAA"}),
    ):
        yield _score(f"values: {name}", query={"values": values}, items=_rows([7], [1]))
        yield _score(f"items: {name}", query=_ids([5]), items={"values": values, "counts": values})
    yield _score("another field", query=_ids([5]) | {"more": 1}, items=_rows([7], [1]))
    yield _score("ids out of the vocabulary", query=_ids([-1]), items=_rows([2**31 - 1], [1]))


def _of_overrides() -> Iterator[Hostile]:
    def form(*shape: int, dtype: str = "float16", data: str | None = None) -> Json:
        found = _base64(np.zeros(shape), dtype) if data is None else data
        return {"dtype": dtype, "shape": list(shape), "data": found}

    def overridden(name: str, items: Any, count: int = 1) -> Hostile:
        fields = {"embed_override_token_id": PLACEHOLDER, "item_embed_overrides": items}
        return _score(name, items=[[PLACEHOLDER, 7]] * count, **fields)

    good = form(1, HIDDEN)
    yield overridden("embeddings of a million items", form(2**20, 1, 1))
    yield overridden("embeddings of too many items", form(2**14, 1, HIDDEN), 2**14)
    yield overridden("a form for each of items that are not there", [good] * 20_000)
    yield overridden("a form for each of too many items", [good] * 5_000, 5_000)
    yield overridden("nothing for each of items that are not there", [good, *[None] * 300_000])
    yield overridden("no data for a large shape", form(1, 2**20, 2**20, data=""))
    yield overridden("much data for a small shape", form(1, 1, HIDDEN, data="A" * 4_000_000))
    yield overridden("one wide embedding", form(1, 1, 2**20))
    yield overridden("more embeddings than placeholders", form(1, 10_000, HIDDEN))
    for name, shape in (
        ("no items", (0, 1, HIDDEN)),
        ("no width", (1, 1, 0)),
        ("a negative size", (-1, 1, HIDDEN)),
        ("beyond numpy", (2**40, 2**40, 2**40)),
        ("of another rank", (1, HIDDEN)),
    ):
        yield overridden(f"a shape with {name}", form(*shape, data="AAAA"))
    for dtype in ("float64", "O", "int8", "float32" * 1000):
        data = {"dtype": dtype, "shape": [1, 1, HIDDEN], "data": "AAAA"}
        yield overridden(f"dtype {dtype:.8}", data)
    infinite = _base64(np.full((1, 1, HIDDEN), np.inf), "float32")
    yield overridden("infinite embeddings", form(1, 1, HIDDEN, dtype="float32", data=infinite))
    yield overridden("words for numbers", [[["one"] * HIDDEN]])
    both = {"stacked_query_item_embed_overrides": [[[0.0]]], "item_embed_overrides": good}
    yield _score("stacked and not", embed_override_token_id=PLACEHOLDER, **both)
    decision = {"input": "a", "questions": [], "embed_override_token_id": PLACEHOLDER}
    yield _hostile(
        "a decision's embeddings", "/v1/decisions", decision | {"input_embed_overrides": form(9, 9)}
    )


def _of_answers() -> Iterator[Hostile]:
    """Small requests with large answers."""
    labels = list(range(VOCABULARY - 200))
    yield _score("labels of all items", 200, 400, items=[[7]] * 100, label_token_ids=labels)
    reading = {"sampling_params": {"max_new_tokens": 0, "temperature": 0}, "return_logprob": True}
    reading |= {"logprob_start_len": 0, "input_ids": [5] * 15_000}
    for number, (path, more) in enumerate(
        (
            ("/generate", {"top_logprobs_num": VOCABULARY}),
            ("/generate", {"token_ids_logprob": labels}),
            ("/generate", {"token_ids_logprob": labels, "top_logprobs_num": 2000}),
            ("/generate", {"top_logprobs_num": VOCABULARY + 1}),
            ("/generate", {"top_logprobs_num": -1}),
            ("/generate", {"token_ids_logprob": [2**70]}),
            ("/generate", {"logprob_start_len": -(2**70)}),
            ("/generate", {"top_logprobs_num": 4000, "input_ids": [[5] * 9000] * 4}),
        )
    ):
        yield _hostile(f"log-probs {number}", path, reading | more, 200, 400)


def _of_names() -> Iterator[Hostile]:
    """Ids that are prefixes of other clients' request ids."""
    for rid in ("p", "pack", "packed-", "packed-1", "", "prefill-only_", "\n"):
        yield _hostile(f"abort {rid!r}", "/abort_request", {"rid": rid}, 200, 400)
    one = {"sampling_params": {"max_new_tokens": 1, "temperature": 0}, "input_ids": [5, 6]}
    yield _hostile("a long name", "/generate", one | {"rid": "p" * 1_000_000}, 200, 400)
    yield _hostile("a list of names", "/generate", one | {"rid": ["p"] * 3})


def _of_headers() -> Iterator[Hostile]:
    items = [f"{number} c " * 100 for number in range(MOST_ITEMS)]  # takes long to encode
    body = {"query": "a b " * 5000, "items": items, "label_token_ids": [5]}
    content = json.dumps(body).encode()
    late = frozenset({504})
    yield Hostile("no time", "/v1/score", content, late, {TIMEOUT: "1"})
    for name in (TIMEOUT, PRIORITY):
        for value in ("-1e9", "1e999", "NaN", "0x10", "9" * 4000, "1,1", "1 ms", str(2**31)):
            yield Hostile(f"{name}: {value:.9}", "/v1/score", content, REFUSED, {name: value})


def _of_other_routes() -> Iterator[Hostile]:
    ids = {"query": [5] * 100_000, "items": [[7]] * MOST_ITEMS, "label_token_ids": [5]}
    yield _hostile("explain a long query", "/prefill_only/explain", ids)
    yield _hostile("explain too many", "/prefill_only/explain", ids | {"items": [[7]] * 9000})
    yield _hostile("an unknown action", "/prefill_only/gc", {"action": "x" * 100_000})
    setwise = {"query": "a", "items": ["<|im_end|>" * 500] * 4, "label_token_ids": [5, 6]}
    setwise["score_extraction_token"] = "<|im_end|>"
    yield _hostile("anchors everywhere", "/v1/score", setwise, 200, 400)
    one = {"model": "m", "max_tokens": 1, "temperature": 0}
    yield _hostile("a long completion", "/v1/completions", one | {"prompt": [5] * 1_000_000})
    chat = one | {"messages": [{"role": "user", "content": "a b " * 40_000}]}
    yield _hostile("a long chat", "/v1/chat/completions", chat)
