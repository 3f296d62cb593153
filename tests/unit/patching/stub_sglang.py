"""A stand-in for SGLang: its source, hooks for it, and a patch and uses that fit it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from sglang_prefill_ext.patching.source import fingerprint, source_of
from sglang_prefill_ext.patching.spec import Group, Kind, Patch, Use, UseKind

MODULE = "sglang.managers"
OWNER = f"{MODULE}.Scheduler"
HOOKS = __name__

UPSTREAM = '''
class Message:
    pass


class Base:
    depth: int

    def inherited(self):
        self.visits = 1
        return "inherited"


class Scheduler(Base):
    message_class = Message

    def __init__(self):
        self.message = self.message_class()
        self.queue = []

    def step(self, batch, last=None):
        """Take one batch."""
        self.queue.append(batch)  # a comment
        return f"stock {batch}"

    def idle(self):
        return True

    @classmethod
    def create(cls, name):
        return cls, name

    @staticmethod
    def parse(text):
        return [text]

    async def score(self, item):
        return ["stock", item]


def wait(timeout_s, *, quietly=False):
    return timeout_s, quietly


LIMIT = 4
'''


def before(_self: Any, batch: str, last: Any = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (_self, f"changed {batch}", last), {}


def after_wait(result: tuple[float, bool], _timeout_s: float, **_kwargs: Any) -> tuple[Any, ...]:
    return ("waited", *result)


def after_static(result: list[str], text: str) -> list[str]:
    return [*result, text.upper()]


def after_class(result: tuple[type, str], cls: type, name: str) -> tuple[type, str]:
    return cls, name + "!"


def around(original: Callable[..., str], *args: Any) -> str:
    return f"around {original(*args)}"


async def around_async(original: Callable[..., Any], *args: Any) -> list[str]:
    return ["around", *await original(*args)]


def make_message() -> str:
    return "our message"


NOT_CALLABLE = 1


def step_patch(**changes: Any) -> Patch:
    """A patch that fits `Scheduler.step` of the stub, except for `changes`."""
    fields: dict[str, Any] = {
        "id": "T1",
        "target": f"{OWNER}.step",
        "kind": Kind.AROUND,
        "hook": f"{HOOKS}:around",
        "group": Group.SCHEDULER,
        "why": "a test",
        "signature": "(self, batch, last=None)",
        "relies_on": "self.queue",
        "diffs": "0001",
    }
    return Patch(**(fields | changes))


def attribute_patch(**changes: Any) -> Patch:
    """A patch that fits the attribute `message_class`, except for `changes`."""
    fields: dict[str, Any] = {
        "target": f"{OWNER}.message_class",
        "kind": Kind.ATTRIBUTE,
        "hook": f"{HOOKS}:make_message",
        "signature": "",
        "relies_on": "self.message_class",
    }
    return step_patch(**(fields | changes))


def scheduler_use(**changes: Any) -> Use:
    """A use that fits the stub's `Scheduler`, except for `changes`."""
    fields: dict[str, Any] = {
        "target": OWNER,
        "kind": UseKind.CLASS,
        "groups": (Group.SCHEDULER,),
        "members": ("step", "queue"),
    }
    return Use(**(fields | changes))


def wait_use(**changes: Any) -> Use:
    """A use that fits the stub's function `wait`, except for `changes`."""
    fields: dict[str, Any] = {
        "target": f"{MODULE}.wait",
        "kind": UseKind.FUNCTION,
        "members": (),
        "signature": "(timeout_s, *, quietly=False)",
    }
    return scheduler_use(**(fields | changes))


def known_body(upstream: ModuleType) -> dict[str, str]:
    return {"0.5.23": fingerprint(source_of(upstream.Scheduler.step))}
