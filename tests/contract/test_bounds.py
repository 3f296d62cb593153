"""Every bound in the docs exists with the stated value, and refuses what the table says."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.config.knobs import flag_name
from sglang_prefill_ext.errors import RequestError, ServerBusyError
from sglang_prefill_ext.frontend.score.score_body import stock_score_body
from sglang_prefill_ext.frontend.score.score_call import ScoreCall
from sglang_prefill_ext.frontend.score.score_frontend import ScoreFrontend
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.scheduling.budget import QueueLoad, refusal
from sglang_prefill_ext.wire import checks
from tests.unit.frontend.links import StubLink, path_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sglang_prefill_ext"
PAGE = ROOT / "docs" / "operations.md"
OPEN = {"what is under way", "none"}
FLAGS = {flag_name(knob.name) for knob in fields(PrefillOnlyConfig)}


def table() -> dict[str, tuple[str, str]]:
    """The table: what can grow -> its bound, and what happens beyond it."""
    text = PAGE.read_text().split("\n## What can grow, and its bound\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.*?) ?\|$", text, re.MULTILINE)
    return {what: (bound, beyond) for what, bound, beyond in rows[1:]}


def frontend(**knobs: int) -> ScoreFrontend:
    return ScoreFrontend(path_of(StubLink(), PrefillOnlyConfig(**knobs), max_row_tokens=9))


async def items() -> None:
    ScoreCall([1], [[2]] * 3, [7]).check_counts(PrefillOnlyConfig(max_items=2))


async def label_lists() -> None:
    ScoreCall([1], [[2]], [[7]] * 3).check_counts(PrefillOnlyConfig(max_items=2))


async def prompts() -> None:
    checks.check_count(3, PrefillOnlyConfig(max_items=2), field="input", noun="prompts")


async def documents() -> None:
    checks.check_count(3, PrefillOnlyConfig(max_items=2), field="documents")


async def embeddings() -> None:
    body = b'{"items": [[1], [1], [1]], "item_embed_overrides": [{}, {}, {}]}'
    stock_score_body(body, PrefillOnlyConfig(max_items=2))


async def memory_of_a_call() -> None:
    await frontend(max_queued_mib=1).score(ScoreCall([1], [[2]] * 400, list(range(100))))


async def too_long() -> None:
    call = ScoreCall([1] * 100_000, [[2]] * 3, [7])
    await frontend(max_queued_tokens=300_000).score(call)


async def repeated_text() -> None:
    checks.check_repeated("a" * (checks.MOST_REPEATED_CHARACTERS // 2 + 1), ["b"] * 3)


async def waiting() -> None:
    await Worker("test", most_waiting=0).run(abs, 1)


def queued(**load: int) -> Callable[[], Awaitable[None]]:
    async def over() -> None:
        limits = QueueLoad(tokens=10, rows=10, bytes=10)
        reason = refusal(limits, QueueLoad(1, 1, 1), QueueLoad(**load))
        if reason:
            raise ServerBusyError(reason)

    return over


REFUSING = {
    "items of a scoring request": items,
    "prompts of a call for vectors": prompts,
    "documents of a rerank request": documents,
    "label lists, one an item": label_lists,
    "embeddings that come for items": embeddings,
    "memory of a call: 4 bytes a token, 32 a number of its answer": memory_of_a_call,
    "tokens of too long prompts, each with the query": too_long,
    "characters of a text repeated for every item": repeated_text,
    "calls that wait to be encoded or packed": waiting,
    "tokens that wait in a scheduler": queued(tokens=10),
    "rows that wait there": queued(rows=10),
    "memory of what waits there": queued(bytes=10),
}
"""Name of a bound -> function that exceeds it and is refused."""


def values(name: str) -> list[int]:
    """The values of a constant in all modules that define one of this name."""
    defined = re.compile(rf"^{name}\b.*=", re.MULTILINE)
    files = [path for path in PACKAGE.rglob("*.py") if defined.search(path.read_text())]
    dotted = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files)
    return [getattr(import_module(module), name) for module in dotted]


@pytest.mark.parametrize("what", table())
def test_a_bound_exists_with_its_value(what: str) -> None:
    bound, _ = table()[what]
    constant = re.fullmatch(r"`(\w+)` = (\d+)", bound)
    if constant is not None:
        name, value = constant.groups()
        assert int(value) in values(name)
    else:
        assert bound in OPEN or bound.strip("`") in FLAGS


def test_whatever_is_refused_is_tried() -> None:
    refused = {what for what, (_, beyond) in table().items() if beyond.startswith("HTTP 4")}
    assert refused == REFUSING.keys()


@pytest.mark.parametrize("what", REFUSING)
async def test_beyond_its_bound_a_request_is_refused(what: str) -> None:
    _, beyond = table()[what]
    error = {"400": RequestError, "429": ServerBusyError}[beyond[5:8]]
    with pytest.raises(error):
        await REFUSING[what]()


def test_the_weights_are_those_of_the_table() -> None:
    assert (checks.TOKEN_BYTES, checks.NUMBER_BYTES) == (4, 32)
