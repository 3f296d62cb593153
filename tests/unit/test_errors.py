from __future__ import annotations

import inspect

from sglang_prefill_ext import errors

CLASSES = dict(inspect.getmembers(errors, inspect.isclass))


def test_every_error_is_one_of_ours_and_says_what_it_means() -> None:
    for found in CLASSES.values():
        assert issubclass(found, errors.PrefillExtError)
        assert (found.__doc__ or "").strip().endswith(".")


def test_wrong_requests_are_value_errors_and_nothing_else_is() -> None:
    value_errors = {name for name, found in CLASSES.items() if issubclass(found, ValueError)}
    assert value_errors == {"RequestError", "TooManyItemsError", "WrongTypeError"}
