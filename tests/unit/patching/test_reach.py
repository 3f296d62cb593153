from __future__ import annotations

import functools
from typing import Any

import pytest

from sglang_prefill_ext.patching import reach


def hook(result: Any, *_args: Any) -> Any:
    return result


def wrap(original: Any, by: Any) -> Any:
    @functools.wraps(original)
    def wrapper(*args: Any) -> Any:
        return by(original(*args), *args)

    return wrapper


def original(*_args: Any) -> str:
    return "original"


def other(result: Any, *_args: Any) -> Any:
    return result


@pytest.mark.parametrize("descriptor", [staticmethod, classmethod, lambda f: f])
def test_the_hook_is_found_at_any_depth(descriptor: Any) -> None:
    assert reach.carries(descriptor(wrap(wrap(original, hook), other)), hook)
    assert reach.carries(descriptor(wrap(wrap(original, other), hook)), hook)
    assert reach.carries(descriptor(hook), hook)


@pytest.mark.parametrize("raw", [original, wrap(original, other), "text", None])
def test_anything_else_does_not_carry_it(raw: object) -> None:
    assert not reach.carries(raw, hook)


def test_an_override_is_found_below_a_subclass_without_one() -> None:
    class Owner:
        step = wrap(original, hook)

    class Child(Owner):
        pass

    class Grandchild(Child):
        def step(self) -> str:
            return "elsewhere"

    assert list(reach.overrides(Owner, "step", hook)) == [f"{__name__}.{Grandchild.__qualname__}"]


def test_an_override_is_found_below_a_subclass_that_calls_the_hook() -> None:
    class Owner:
        step = wrap(original, hook)

    class Child(Owner):
        def step(self) -> Any:
            return super().step()

    class Grandchild(Child):
        def step(self) -> str:
            return "elsewhere"

    assert list(reach.overrides(Owner, "step", hook)) == [f"{__name__}.{Grandchild.__qualname__}"]
