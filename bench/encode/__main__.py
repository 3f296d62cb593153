"""Time how stock and the extension encode texts: ``python -m bench.encode``."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bench.command import Bench
from bench.drawing import new_table
from bench.encode.run import EncodeResult, compare_strings, count_joined_mismatches, measure
from bench.encode.tokenizers import MADE, loaded
from bench.encode.ways import SERVED, draw_texts, encoder_ways, stock_ways
from bench.gate import GateError
from bench.options import Name, Seed
from bench.workloads import Shape
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.texts import libraries
from sglang_prefill_ext.texts.frame import frame_of
from sglang_prefill_ext.texts.libraries import TokenizerCopy
from sglang_prefill_ext.texts.proof import boundaries_of
from sglang_prefill_ext.texts.sample_texts import splice_cases, texts
from sglang_prefill_ext.texts.settings import settings_of
from sglang_prefill_ext.texts.splice import Splice
from sglang_prefill_ext.texts.text_encoder import TextEncoder
from sglang_prefill_ext.texts.ways import Plain

SHAPES = ["60+20x50", "200+50x50", "500+20x50"]
_READY_S = 600


def main(
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="Directory of a fast tokenizer, or a file of Mistral's; by default one is made.",
        ),
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="<query>+<item>x<items>, in words; repeatable.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each shape.")] = 60,
    strings: Annotated[
        int,
        typer.Option(min=1_000, help="Adversarial strings to compare; 1000000 for a long run."),
    ] = 20_000,
    seed: Seed = 0,
    name: Name = "encode",
) -> None:
    """Encode the texts of requests in every way, in turn; compare all ids with stock's."""
    bench = Bench("bench.encode", name)
    with bench.no_figures_on_error(), tempfile.TemporaryDirectory(prefix="bench-") as directory:
        measured = loaded(tokenizer)
        plain = _plain(measured)
        json = measured.backend_tokenizer.to_str()
        serving = partial(_serving, plain, json, Path(directory))
        start = time.perf_counter()
        served = serving()
        facts = {"ready_s": round(time.perf_counter() - start, 2), "tokenizer": served.status()}
        added = list(measured.get_added_vocab())
        facts["strings"] = _checked_strings(plain, served, added, strings, seed)
        ways = stock_ways(measured) | _library_ways(json, bench.console)
        # Another one than has met the strings, because libraries cache words.
        ways[SERVED] = partial(serving().encode_joined, item_first=False)
        label = f"made, {MADE} tokens" if tokenizer is None else tokenizer.name
        results: list[EncodeResult] = []
        for each in map(Shape.parse, shape or SHAPES):
            results += measure(ways, each, draw_texts(each, requests, seed), label)
    bench.console.print(_table(results))
    bench.console.print(f"strings compared: {facts['strings']}; ready in {facts['ready_s']} s")
    bench.record(results, **facts)
    bench.say_written()


def _serving(plain: Plain, json: str, directory: Path) -> TextEncoder:
    texts = TextEncoder(plain, json, PrefillOnlyConfig(), FrontendMetrics(), directory)
    if not texts.wait_until_ready(_READY_S):
        raise GateError("the libraries were not judged in time")
    return texts


def _plain(tokenizer: Any) -> Plain:
    def encode(
        texts: Sequence[str | tuple[str, str]], *, continued: bool = False
    ) -> list[list[int]]:
        ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=not continued)["input_ids"]
        return ids

    return encode


def _checked_strings(
    plain: Plain, served: TextEncoder, added: list[str], count: int, seed: int
) -> dict[str, float]:
    """Compare the ids of adversarial strings, others than those by which libraries are chosen.

    Raises:
        GateError: the ids of a string differ.
    """
    found = compare_strings(plain, served, texts(count, added, seed=seed + 1))
    wrong, joined = found["mismatches"], 0
    for item_first in (False, True):
        cases = list(splice_cases(added))
        compared, differing = count_joined_mismatches(plain, served, cases, item_first=item_first)
        joined, wrong = joined + compared, wrong + differing
    if wrong:
        raise GateError(f"{wrong} strings have other ids than stock's")
    return found | {"joined": joined}


def _library_ways(json: str, console: Console) -> dict[str, Any]:
    """Return the ways of all libraries that can load the tokenizer; a server too skips others."""
    settings = settings_of(json)
    frame = frame_of(settings["post_processor"])
    if frame is None:
        raise GateError("the tokenizer's post-processor is not known; no library is compared")
    splice = Splice(boundaries_of(settings), frame)
    ways = encoder_ways(partial(TokenizerCopy, json), splice)
    for library in libraries.LIBRARIES:
        try:
            ways |= encoder_ways(partial(libraries.load, library, json), splice)
        except Exception as error:  # each library has error types of its own
            console.print(f"left out: {library} cannot load this tokenizer ({error})")
    return ways


def _table(results: Sequence[EncodeResult]) -> Table:
    numbers = ("µs per text", "× stock batch", "× one by one", "mismatches")
    table = new_table("", "shape", "way", *numbers, left=["shape", "way"])
    for each in results:
        ratios = (f"{each.ratio:.1f}", f"{each.ratio_one_by_one:.1f}")
        counted = f"{each.mismatches} of {each.compared}"
        table.add_row(each.shape, each.way, f"{each.us_per_text:.2f}", *ratios, counted)
    return table


if __name__ == "__main__":
    typer.run(main)
