"""The Hugging Face model in float32: what both paths are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.integration.support.client import Json

LONG = 4096


class Reference:
    """Scores one prompt at a time, without a cache, a batch or a prefix."""

    def __init__(self, model_dir: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.float32, attn_implementation="eager"
        )

    @torch.inference_mode()
    def logprobs(self, body: Json, rows: list[int]) -> list[NDArray[np.float64]]:
        """Label log-probs (natural log) of some rows of a scoring request."""
        found = []
        for row in rows:
            prompt = self._prompt(body, row)
            embeds = self._model.get_input_embeddings()(torch.tensor([prompt]))
            for at, vector in _overrides(body, row, prompt):
                embeds[0, at] = torch.tensor(vector)
            # Only eager attention has soft caps, but its memory is quadratic in the tokens.
            if len(prompt) > LONG:
                self._model.set_attn_implementation("sdpa")
            found.append(self._row(embeds, _labels(body, row)))
            if len(prompt) > LONG:
                self._model.set_attn_implementation("eager")
        return found

    @torch.inference_mode()
    def all_logprobs(self, prompt: list[int]) -> NDArray[np.float64]:
        """Log-probs (natural log) of the next token after every token; `[tokens, vocabulary]`."""
        logits = self._model(torch.tensor([prompt])).logits[0]
        values: NDArray[np.float64] = logits.double().log_softmax(-1).numpy()
        return values

    def _prompt(self, body: Json, row: int) -> list[int]:
        parts = [body["query"], body["items"][row]]
        whole = parts[1] + parts[0] if body.get("item_first") else parts[0] + parts[1]
        ids: list[int] = self.tokenizer.encode(whole) if isinstance(whole, str) else whole
        return ids

    def _row(self, embeds: torch.Tensor, labels: list[int]) -> NDArray[np.float64]:
        logits = self._model(inputs_embeds=embeds, logits_to_keep=1).logits[0, -1]
        values: NDArray[np.float64] = logits.double().log_softmax(-1)[labels].numpy()
        return values


def _overrides(body: Json, row: int, prompt: list[int]) -> Iterator[tuple[int, list[float]]]:
    """The positions of a prompt's embeddings, and these; the query has one for each placeholder."""
    of_query, of_items = body.get("query_embed_overrides"), body.get("item_embed_overrides")
    token, query = body.get("embed_override_token_id"), len(body["query"])
    stacked = body.get("stacked_query_item_embed_overrides")
    for vectors, start, stop in (
        (of_query, 0, query),
        (of_items and of_items[row], query, len(prompt)),
        (stacked and stacked[row], 0, len(prompt)),
    ):
        if vectors is None:
            continue
        places = [place for place in range(start, stop) if prompt[place] == token]
        yield from zip(places, vectors, strict=True)


def _labels(body: Json, row: int) -> list[int]:
    labels: Any = body["label_token_ids"]
    chosen: list[int] = labels[row] if isinstance(labels[0], list) else labels
    return chosen
