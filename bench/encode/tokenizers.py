"""Loads the tokenizer that is measured."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from sglang_prefill_ext.modelmaker.tokenizer import train_tokenizer

MADE = 8_000
"""Vocabulary of the tokenizer that is made if none is given; the `micro` model has the same."""


def loaded(path: Path | None) -> Any:
    """Return a fast tokenizer as transformers makes it.

    Args:
        path: a directory of one; or a file of Mistral's, for Tekken or SentencePiece, as the
            package mistral_common has; None for a tokenizer that is made.
    """
    if path is None:
        return train_tokenizer(MADE, 32_768)
    if path.is_dir():
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(path)
    return _tekken(path) if path.suffix == ".json" else _sentence_piece(path)


def _tekken(file: Path) -> Any:
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.mistral.tokenizer import MistralConverter

    return PreTrainedTokenizerFast(tokenizer_object=MistralConverter(str(file)).converted())


def _sentence_piece(file: Path) -> Any:
    from transformers import LlamaTokenizer

    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(file, Path(directory, "tokenizer.model"))
        return LlamaTokenizer.from_pretrained(directory)
