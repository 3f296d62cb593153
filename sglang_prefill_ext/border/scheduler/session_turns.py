"""Hooks for turns of sessions that would end SGLang's scheduler."""

from __future__ import annotations

from typing import Any


def keep_turns(_result: None, session: Any, *_args: Any, **_kwargs: Any) -> None:
    """AFTER `Session.__init__`: keep turns where those behind a removed one can be removed, too."""
    session.req_nodes = Turns()


class Turns(dict[str, Any]):
    """Turns of a session by their names, of which several may have had the same.

    SGLang removes a turn together with those that continue it, while it goes through all of them.
    """

    def items(self) -> Any:
        """A copy, so that turns may be removed meanwhile."""
        return [*super().items()]

    def __delitem__(self, name: str) -> None:
        self.pop(name, None)


def leave_session(request: Any, session: Any, *_args: Any, **_kwargs: Any) -> None:
    """AFTER `Session.create_req`: a turn that a streaming session refuses is none of its turns.

    At its end SGLang would take the session for idle, although another turn runs, and two such
    turns in one batch would both found the session's K/V.
    """
    if session.streaming and request.to_finish is not None:
        request.session = None
