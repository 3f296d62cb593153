"""The Hugging Face model in float32: what both paths are compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.integration.client import Json


class Reference:
    """Scores one prompt at a time, without a cache, a batch or a prefix."""

    def __init__(self, model_dir: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
        self._model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)

    @torch.inference_mode()
    def logprobs(self, body: Json, rows: list[int]) -> list[NDArray[np.float64]]:
        """Label log-probs (natural log) of some rows of a scoring request."""
        return [self._row(self._prompt(body, row), _labels(body, row)) for row in rows]

    def _prompt(self, body: Json, row: int) -> list[int]:
        parts = [body["query"], body["items"][row]]
        whole = parts[1] + parts[0] if body.get("item_first") else parts[0] + parts[1]
        ids: list[int] = self.tokenizer.encode(whole) if isinstance(whole, str) else whole
        return ids

    def _row(self, prompt: list[int], labels: list[int]) -> NDArray[np.float64]:
        logits = self._model(torch.tensor([prompt]), logits_to_keep=1).logits[0, -1]
        values: NDArray[np.float64] = logits.double().log_softmax(-1)[labels].numpy()
        return values


def _labels(body: Json, row: int) -> list[int]:
    labels: Any = body["label_token_ids"]
    chosen: list[int] = labels[row] if isinstance(labels[0], list) else labels
    return chosen
