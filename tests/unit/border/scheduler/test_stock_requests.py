"""What would end SGLang's scheduler: embeddings, turns of sessions, and types of tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers import io_struct
from sglang.srt.managers.embed_types import PositionalEmbeds
from sglang.srt.session.session_controller import Session, SessionReqNode
from sglang.utils import TypeBasedDispatcher

from sglang_prefill_ext.border.scheduler.stock_requests import (
    keep_turns,
    leave_session,
    refuse_embeddings,
    type_all_tokens,
)

PLACED = PositionalEmbeds([torch.zeros(2)], [3])

ENCODER = SimpleNamespace(is_generation=False)


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


class Gemma3nForCausalLM(Complete):
    """So does it."""


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
        (
            Gemma3nForCausalLM(),
            {"placed": "embed_overrides: 1 ", "placed vector": "embed_overrides: 1 "}
            | {"whole": "input_embeds: 1, but SGLang's Gemma3n"},
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


def session_of(*turns: tuple[str, int | None]) -> tuple[Any, list[Any]]:
    """A session with ended turns, each with its name and the number of the one it continues."""
    session, nodes = Session(1_000), []
    keep_turns(None, session)
    for rid, parent in turns:
        request = SimpleNamespace(rid=rid, finished_reason=object())
        nodes.append(SessionReqNode(request, None if parent is None else nodes[parent]))
        session.req_nodes[rid] = nodes[-1]
    return session, nodes


def test_turns_can_be_removed_while_all_are_gone_through() -> None:
    session, _ = session_of(("a", None), ("b", 0), ("c", None))
    for _, node in session.req_nodes.items():
        node.clear(session.req_nodes)
    assert not session.req_nodes


def test_turns_that_had_the_same_name_can_be_removed() -> None:
    session, nodes = session_of(("a", None), ("b", 0), ("b", 0))
    nodes[0].clear_children(session.req_nodes)
    assert list(session.req_nodes) == ["a"]


@pytest.mark.parametrize(
    ("streaming", "refused", "left"),
    [(True, True, True), (True, False, False), (False, True, False), (False, False, False)],
)
def test_only_refused_turns_of_streaming_sessions_leave_them(
    streaming: bool, refused: bool, left: bool
) -> None:
    session = Session(1_000, streaming=streaming)
    turn = SimpleNamespace(session=session, to_finish=object() if refused else None)
    leave_session(turn, session)
    assert (turn.session is None) == left


@pytest.mark.parametrize(
    ("types", "lens", "wanted"),
    [
        ([None, None], [2, 3], None),
        ([[0, 1], [0, 0, 1]], [2, 3], [0, 1, 0, 0, 1]),
        ([None, [0, 1], None], [2, 2, 1], [0, 0, 0, 1, 0]),
        ([[0, 1, 1], [0, 1]], [1, 2], [0, 0, 1]),  # the first is refused as too long
        ([[0, 1, 1], None], [1, 2], [0, 0, 0]),  # so SGLang has the right number
    ],
)
def test_tokens_without_a_type_get_the_first_and_others_keep_theirs(
    types: list[Any], lens: list[int], wanted: list[int] | None
) -> None:
    requests = [SimpleNamespace(token_type_ids=each) for each in types]
    batch = SimpleNamespace(reqs=requests, extend_lens=lens, model_config=ENCODER)
    joined = [kind for each in types if each is not None for kind in each]  # as SGLang does it
    stock = torch.tensor(joined) if joined else None
    forward_batch = SimpleNamespace(token_type_ids=stock)
    type_all_tokens(None, forward_batch, batch)
    found = forward_batch.token_type_ids
    assert (found if found is None else found.tolist()) == wanted


def test_a_batch_that_generates_is_left_as_it_is() -> None:
    forward_batch = SimpleNamespace(token_type_ids=torch.tensor([0, 1]))
    batch = SimpleNamespace(model_config=SimpleNamespace(is_generation=True))
    type_all_tokens(None, forward_batch, batch)
    assert forward_batch.token_type_ids.tolist() == [0, 1]
