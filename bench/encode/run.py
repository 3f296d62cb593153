"""Measure every way on the same requests, in turn, and compare all ids with stock's."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.encode.ways import BATCH, Request, Way, mismatches, rows_of
from bench.gate import GateError
from bench.workloads import Shape
from sglang_prefill_ext.texts.comparison import same
from sglang_prefill_ext.texts.libraries import flat
from sglang_prefill_ext.texts.splice import Spliced
from sglang_prefill_ext.texts.text_encoder import TextEncoder
from sglang_prefill_ext.texts.ways import Plain

_CHUNK = 500


@dataclass(frozen=True, slots=True)
class EncodeResult:
    """One way to encode, on requests of one shape.

    Attributes:
        tokenizer: its name.
        shape: in words, such as ``60+20x50``.
        us_per_text: median over the requests.
        ratio: time of stock with batch encoding, over the time of this way.
        ratio_one_by_one: time of stock by default, over the time of this way.
        compared: number of prompts whose ids were compared with stock's.
        mismatches: number of compared prompts whose ids differ.
    """

    tokenizer: str
    shape: str
    way: str
    us_per_text: float
    ratio: float
    ratio_one_by_one: float
    compared: int
    mismatches: int


def measure(
    ways: Mapping[str, Way], shape: Shape, requests: Sequence[Request], tokenizer: str
) -> list[EncodeResult]:
    """Time each way on the same requests.

    Args:
        ways: the first is stock's default; `BATCH` must be one of them.

    Raises:
        GateError: a way returns other ids than stock.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    wrong = dict.fromkeys(ways, 0)
    names = list(ways)
    for number, (query, items) in enumerate(requests):
        wanted = rows_of(ways[BATCH](query, items))
        first = number % len(names)  # the order rotates
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            found = ways[name](query, items)
            seconds[name].append(time.perf_counter() - start)
            wrong[name] += mismatches(rows_of(found), wanted)
    if differing := {name: count for name, count in wrong.items() if count}:
        raise GateError(f"prompts whose ids are not stock's: {differing}")
    us = {name: median(each) * 1e6 / shape.items for name, each in seconds.items()}
    compared = len(requests) * shape.items
    return [
        EncodeResult(
            *(tokenizer, str(shape), name, round(each, 3)),
            *(round(us[BATCH] / each, 2), round(us[names[0]] / each, 2)),
            *(compared, wrong[name]),
        )
        for name, each in us.items()
    ]


def compare_strings(plain: Plain, texts: TextEncoder, strings: Sequence[str]) -> dict[str, float]:
    """Encode single texts as a front end does, and as stock does; compare the ids.

    Returns:
        The number of texts (``single``), the number that differ (``mismatches``), and the times
        per text in µs, stock's and the extension's.
    """
    wrong, stock_s, extension_s = 0, 0.0, 0.0
    for begin in range(0, len(strings), _CHUNK):
        chunk = strings[begin : begin + _CHUNK]
        start = time.perf_counter()
        found = texts.encode(chunk)
        middle = time.perf_counter()
        wanted = plain(chunk)
        stock_s += time.perf_counter() - middle
        extension_s += middle - start
        ours, theirs = flat(found), flat(wanted)
        wrong += 0 if same(ours, theirs) else mismatches(ours, theirs)
    us = 1e6 / len(strings)
    return {
        "single": len(strings),
        "mismatches": wrong,
        "stock_us": round(stock_s * us, 3),
        "extension_us": round(extension_s * us, 3),
    }


def count_joined_mismatches(
    plain: Plain, texts: TextEncoder, cases: Sequence[Request], *, item_first: bool
) -> tuple[int, int]:
    """Compare the ids of a shared text joined with others, encoded as above.

    Returns:
        The number of compared prompts, and the number that differ.
    """
    compared = wrong = 0
    for shared, items in cases:
        whole = [item + shared if item_first else shared + item for item in items]
        found = texts.encode_joined(shared, items, item_first=item_first)
        ours = Spliced(*found).whole(item_first=item_first)
        wrong += mismatches(ours, flat(plain(whole)))
        compared += len(items)
    return compared, wrong
