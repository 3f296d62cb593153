"""Which requests a scheduler refuses because its model cannot take their embeddings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers import io_struct
from sglang.srt.managers.embed_types import PositionalEmbeds
from sglang.utils import TypeBasedDispatcher

from sglang_prefill_ext.border.scheduler.stock_embeds import refuse_embeddings

PLACED = PositionalEmbeds([torch.zeros(2)], [3])


class Complete:
    def forward(self, input_ids: Any, positions: Any, batch: Any, input_embeds: Any = None) -> None:
        pass

    def get_input_embeddings(self) -> None:
        pass


class PassesOn(Complete):
    def forward(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        pass


class NoTable:
    def forward(self, input_ids: Any, positions: Any, batch: Any, input_embeds: Any = None) -> None:
        pass


class Neither:
    def forward(self, input_ids: Any, positions: Any, batch: Any) -> None:
        pass


class Gemma4ForConditionalGeneration(Complete):
    """It wants `input_embeds` without token ids."""


class Scheduler:
    """Notes what it handles and what it sends."""

    def __init__(self, model: Any) -> None:
        self.handled: list[Any] = []
        self.sent: list[Any] = []
        kinds = (
            *(io_struct.TokenizedGenerateReqInput, io_struct.TokenizedEmbeddingReqInput),
            *(io_struct.BatchTokenizedGenerateReqInput, io_struct.BatchTokenizedEmbeddingReqInput),
        )
        self._request_dispatcher = TypeBasedDispatcher([(kind, self.handle) for kind in kinds])
        self.tp_worker = SimpleNamespace(model_runner=SimpleNamespace(model=model))
        sender = SimpleNamespace(send_output=lambda *sent: self.sent.append(sent))
        self.ipc_channels = SimpleNamespace(send_to_tokenizer=sender)
        refuse_embeddings(self)

    def handle(self, message: Any) -> None:
        self.handled += getattr(message, "batch", [message])

    def take(self, message: Any) -> None:
        self._request_dispatcher(message)


def tokenized(kind: Any, rid: str, **fields: Any) -> Any:
    """A request with only the fields that are read."""
    names = [name for name in kind.__struct_fields__ if name not in fields]
    return kind(**dict.fromkeys(names) | fields | {"rid": rid})


def generation(rid: str, **fields: Any) -> Any:
    return tokenized(io_struct.TokenizedGenerateReqInput, rid, **fields)


def embedding(rid: str, **fields: Any) -> Any:
    return tokenized(io_struct.TokenizedEmbeddingReqInput, rid, **fields)


REQUESTS = {
    "plain": generation("plain"),
    "placed": generation("placed", positional_embed_overrides=PLACED),
    "whole": generation("whole", input_embeds=[[0.5, 0.5]]),
    "vector": embedding("vector"),
    "placed vector": embedding("placed vector", positional_embed_overrides=PLACED),
}


@pytest.mark.parametrize(
    ("model", "refused"),
    [
        (Complete(), {}),
        (PassesOn(), {}),
        (NoTable(), dict.fromkeys(("placed", "placed vector"), "embed_overrides: 1 ")),
        (
            Neither(),
            {"placed": "embed_overrides: 1 ", "placed vector": "embed_overrides: 1 "}
            | {"whole": "input_embeds: 1, but SGLang's Neither"},
        ),
        (
            Gemma4ForConditionalGeneration(),
            {"placed": "embed_overrides: 1 ", "placed vector": "embed_overrides: 1 "}
            | {"whole": "input_embeds: 1, but SGLang's Gemma4"},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_model_cannot_take_is_answered_and_not_handled(
    model: Any, refused: dict[str, str]
) -> None:
    alone, together = Scheduler(model), Scheduler(model)
    for request in REQUESTS.values():
        alone.take(request)
    for kind, make in (
        (io_struct.TokenizedGenerateReqInput, io_struct.BatchTokenizedGenerateReqInput),
        (io_struct.TokenizedEmbeddingReqInput, io_struct.BatchTokenizedEmbeddingReqInput),
    ):
        together.take(make(batch=[each for each in REQUESTS.values() if type(each) is kind]))
    for scheduler in (alone, together):
        assert [each.rid for each in scheduler.handled] == [
            rid for rid in REQUESTS if rid not in refused
        ]
        assert len(scheduler.sent) == len(refused)
        for answer, request in scheduler.sent:
            assert answer.rid == request.rid
            assert answer.finished_reason["status_code"] == 400
            assert answer.finished_reason["message"].startswith(refused[request.rid])
