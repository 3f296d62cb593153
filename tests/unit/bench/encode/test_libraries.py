from __future__ import annotations

import io

from rich.console import Console
from tokenizers.normalizers import NFKC

from bench.encode.__main__ import _library_ways
from sglang_prefill_ext.modelmaker.tokenizer import train_tokenizer


def test_a_library_that_cannot_load_the_tokenizer_is_left_out() -> None:
    backend = train_tokenizer(1_000, 128).backend_tokenizer
    console = Console(file=io.StringIO(), width=400)
    assert len(_library_ways(backend.to_str(), console)) == 6
    backend.normalizer = NFKC()
    ways = _library_ways(backend.to_str(), console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert 2 <= len(ways) < 6
    assert shown.count("left out: ") == 3 - len(ways) // 2
