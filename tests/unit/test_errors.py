from __future__ import annotations

import inspect
import re

from sglang_prefill_ext import errors


def _drawn_tree() -> dict[str, str]:
    """Read ``{class: parent}`` off the tree in the module's docstring."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        drawn = re.fullmatch(r"    ((?:│   |    )*)(├── |└── |)([A-Z]\w+)(?:  .*)?", line)
        if drawn is None:
            continue
        depth = len(drawn[1]) // 4 + bool(drawn[2])
        path = [*path[:depth], drawn[3]]
        parents[drawn[3]] = path[depth - 1] if depth else "Exception"
    return parents


def test_the_drawn_tree_is_the_tree_of_classes() -> None:
    classes = [
        cls
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if cls.__module__ == errors.__name__
    ]
    assert _drawn_tree() == {cls.__name__: cls.__bases__[0].__name__ for cls in classes}


def test_every_error_says_what_it_means() -> None:
    for name in _drawn_tree():
        assert (getattr(errors, name).__doc__ or "").endswith(".")


def test_wrong_requests_are_value_errors_and_nothing_else_is() -> None:
    value_errors = {name for name in _drawn_tree() if issubclass(getattr(errors, name), ValueError)}
    assert value_errors == {"RequestError", "TooManyItemsError"}
