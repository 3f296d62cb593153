"""Turns of SGLang's sessions can be removed with others, and refused ones leave their session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.session.session_controller import Session, SessionReqNode

from sglang_prefill_ext.border.scheduler.session_turns import keep_turns, leave_session


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
