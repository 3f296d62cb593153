from __future__ import annotations

import re

import pytest

from sglang_prefill_ext.sizing.advice import advice
from sglang_prefill_ext.sizing.device import DEVICES
from sglang_prefill_ext.sizing.forward import Serving
from sglang_prefill_ext.sizing.model import ModelShape
from sglang_prefill_ext.sizing.parallelism import Load, forecasts
from sglang_prefill_ext.sizing.shape import Shape
from tests.unit.sizing.models import DENSE, SPARSE, decoder

LARGE = decoder(80, 8192, 64, 8, 128, 28_672, 128_256)


@pytest.mark.parametrize(
    ("model", "gpus", "shape", "load", "words"),
    [
        (DENSE["8B"], 4, "100+400x16", Load(), "Take 4 x TP1: .* 2 x TP2 takes .* for all-reduces"),
        (DENSE["8B"], 4, "4000+50x16", Load(), "Take 1 x TP4: .* 2 x TP2 takes .* for arithmetic"),
        (DENSE["0.6B"], 4, "100+400x16", Load(), r"2 x TP2 takes 8\.3, of which 8\.3 for launches"),
        (SPARSE, 4, "100+400x16", Load(), "2 x TP2 takes .* for all-reduces"),
        (DENSE["0.6B"], 4, "4000+50x16", Load(), "Take 2 x TP2: .* take equally long"),
        (
            DENSE["8B"],
            4,
            "100+400x16",
            Load(8),
            r"Take 4 x TP1: .* up to 21\.6 requests/s, not 24\.4",
        ),
        (DENSE["8B"], 4, "100+400x16", Load(rate=20), r"up to 21\.6 requests/s, not 24\.4"),
        (DENSE["8B"], 4, "100+400x16", Load(rate=1), "2 x TP2 takes .* for all-reduces"),
        (DENSE["8B"], 4, "4000+50x16", Load(rate=1), "Take 1 x TP4: .* 2 x TP2 .* for arithmetic"),
        (DENSE["8B"], 4, "100+400x16", Load(rate=23), "no other division serves 23"),
        (DENSE["8B"], 4, "100+400x16", Load(rate=100), "No division serves 100 requests/s"),
        (DENSE["8B"], 1, "100+400x16", Load(), r"Take 1 x TP1: 163\.6 ms a request\.$"),
        (LARGE, 4, "100+400x16", Load(), "Take 1 x TP4: .* All other divisions do not fit"),
        (LARGE, 1, "100+400x16", Load(), "Nothing fits: 1 x TP1: weights take 141.1 GB"),
    ],
)
def test_one_sentence_says_what_to_take_and_why(
    model: ModelShape, gpus: int, shape: str, load: Load, words: str
) -> None:
    found = forecasts(Serving(model, DEVICES["h100-sxm"]), gpus, Shape.parse(shape), load)
    assert re.search(words, advice(found, load)), advice(found, load)
