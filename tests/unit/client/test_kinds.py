"""Arguments of the wrong kind, of all that a user calls."""

from __future__ import annotations

import math
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from sglang_prefill_ext.client import (
    AsyncPrefillClient,
    EmbedOverrides,
    Options,
    PrefillClient,
    Retries,
)
from sglang_prefill_ext.client.explanation import explain
from sglang_prefill_ext.client.kinds import checked, is_a, is_list
from sglang_prefill_ext.errors import ConfigError, RequestError
from tests.unit.client.stand_in import StandIn

ARRAY = np.array([1, 2])  # the truth of which is ambiguous
CLIENTS = [PrefillClient, AsyncPrefillClient]


def test_numpys_numbers_are_numbers_and_bools_are_none() -> None:
    taken = [(np.int64(2), int), (np.float32(2), float), (2, float), (np.bool_(True), bool)]
    for value, kind in taken:
        found = checked("x", value, kind)
        assert (type(found), found) == (kind, value)
    for value in (True, np.bool_(True), "1", None, ARRAY, np.array(1), 1j):
        assert not is_a(value, int)
        assert not is_a(value, float)
    for number in (math.nan, math.inf, -math.inf, 10**400, np.float32("inf")):
        assert not is_a(number, float)
    assert not any(is_a(value, bool) for value in (0, 1, "no", None))


def test_a_list_is_no_text_and_has_a_dimension() -> None:
    assert all(map(is_list, ([], (), range(2), ARRAY)))
    assert not any(map(is_list, ("ab", b"ab", None, {1}, {}, np.array(2), (x for x in "ab"))))


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("base_url", [None, 5, b"x", [], ARRAY, httpx.URL("http://h")]),
        ("api_key", [5, True, b"key", ARRAY, ["k"]]),
        ("max_items_per_request", [None, "x", 1.5, math.inf, True, ARRAY]),
        ("retries", [None, 5, {"max_attempts": 1}]),
        ("transport", [5, "x", ARRAY]),
        ("credentials", [5, "x", ARRAY]),
    ],
)
def test_settings_of_the_wrong_kind_are_named(kind: Any, name: str, values: list[Any]) -> None:
    for value in values:
        url = {"base_url": "grpcs://h:1"} if name == "credentials" else {}
        with pytest.raises(ConfigError, match=f"^{name}: .* Give "):
            kind(**url, **{name: value})


def test_a_wrong_key_is_not_shown() -> None:
    with pytest.raises(ConfigError) as refused:
        PrefillClient(api_key=b"secret")  # type: ignore[arg-type]
    assert "secret" not in str(refused.value)


def test_both_clients_have_transports_and_concurrency_of_their_own() -> None:
    with pytest.raises(ConfigError, match=r"transport: .* Give an object of BaseTransport"):
        PrefillClient(transport=httpx.AsyncHTTPTransport())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"transport: .* Give an object of AsyncBaseTransport"):
        AsyncPrefillClient(transport=httpx.HTTPTransport())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"max_concurrency: 'x' cannot be used. Give a whole"):
        AsyncPrefillClient(max_concurrency="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", ["http", "https", "grpc"])
@pytest.mark.parametrize(
    "rest", ["a..b", f"{'a' * 64}.com", "xn--a", "h:65536", "h:99999", "h:1?x=1", "h:1#x", "\ud800"]
)
def test_an_address_that_no_computer_has_is_refused(scheme: str, rest: str) -> None:
    """The system takes the lower 16 bits of a port, which may be those of another server."""
    for ask in (PrefillClient, lambda url: explain(url, b"{}")):
        with pytest.raises(ConfigError, match=r"^base_url: .* is no address"):
            ask(f"{scheme}://{rest}")


def test_the_last_port_is_one() -> None:
    PrefillClient("http://h:65535").close()


def test_schemes_may_be_in_capitals() -> None:
    for url in ("HTTP://h", "GRPC://h:1"):
        PrefillClient(url).close()
    PrefillClient("GRPCS://h:1", credentials=grpc.ssl_channel_credentials()).close()


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("url", ["http://h", "https://h", "grpc://h:1", "GRPC://h:1"])
def test_credentials_that_would_not_be_used_are_refused(kind: Any, url: str) -> None:
    """Whoever gives them counts on a way that nobody can read."""
    with pytest.raises(ConfigError, match=r"^credentials: \w+:// does not use it. .* at grpcs://"):
        kind(url, credentials=grpc.ssl_channel_credentials())


@pytest.mark.parametrize("url", ["grpc://h:1", "grpcs://h:1"])
def test_a_transport_that_would_not_be_used_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^transport: grpcs?:// does not use it. .* at http://"):
        PrefillClient(url, transport=httpx.HTTPTransport())
    with pytest.raises(ConfigError, match=r"^transport: grpcs?:// does not use it. .* at http://"):
        AsyncPrefillClient(url, transport=httpx.AsyncHTTPTransport())


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("priority", ["x", None, 1.5, True, ARRAY]),
        ("timeout_s", ["x", b"x", [], ARRAY, True, 1j]),
        ("keep_prefix", ["no", 1, None, ARRAY]),
        ("stock", ["off", 0, None, ARRAY]),
    ],
)
def test_options_of_the_wrong_kind_are_named(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(RequestError, match=f"^{name}: "):
            Options(**{name: value})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_attempts", ["x", None, 1.5, math.inf, True, ARRAY]),
        ("first_wait_s", ["x", None, -1, math.nan, math.inf, True, ARRAY]),
        ("longest_wait_s", ["x", None, -1, math.nan, ARRAY]),
        ("longest_asked_s", ["x", None, -1, math.nan, 2e7]),
    ],
)
def test_retries_that_cannot_work_are_refused(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=f"^{name}: .* cannot be used. Give "):
            Retries(**{name: value})


@pytest.mark.parametrize(
    ("method", "name", "values"),
    [
        ("score", "options", [None, 5, {}, ARRAY]),
        ("score", "apply_softmax", [None, 1, "no", b"x", ARRAY, object()]),
        ("score", "item_first", [None, 0, "no"]),
        ("score", "return_token_logprobs", [None, 0, "no"]),
        ("score", "temperature", [None, "1", b"x", True, [], ARRAY, 1j, math.nan, math.inf]),
        ("score", "embed_overrides", [5, "x", {}, ARRAY]),
        ("score", "items", [np.array(2), b"ab"]),
        ("embed", "options", [None, 5]),
        ("embed", "prompts", [np.array(2), b"ab"]),
        ("embed", "dimensions", ["x", [], 1.5, math.nan, math.inf, True, ARRAY]),
        ("embed", "adapter", [5, True, b"x", ["x"], ARRAY]),
        ("classify", "adapter", [5, True, b"x", ["x"], ARRAY]),
    ],
)
def test_arguments_of_the_wrong_kind_are_named_and_nothing_is_sent(
    stand_in: StandIn, method: str, name: str, values: list[Any]
) -> None:
    right = {"query": "q", "items": ["a"], "label_token_ids": [1]}
    arguments = right if method == "score" else {"prompts": ["a"]}
    with PrefillClient(stand_in.url) as client:
        for value in values:
            with pytest.raises(RequestError, match=rf"^{name}(\[0\])?: "):
                getattr(client, method)(**arguments | {name: value})
    assert not stand_in.seen


@pytest.mark.parametrize(
    ("field", "overrides"),
    [
        ("embed_override_token_id", EmbedOverrides(None)),  # type: ignore[arg-type]
        ("embed_override_token_id", EmbedOverrides(math.nan)),  # type: ignore[arg-type]
        ("embed_override_token_id", EmbedOverrides("5")),  # type: ignore[arg-type]
        ("item_embed_overrides", EmbedOverrides(5, items=5)),  # type: ignore[arg-type]
        ("item_embed_overrides", EmbedOverrides(5, items=np.array(5.0))),
    ],
)
def test_overrides_of_the_wrong_kind_are_named(field: str, overrides: EmbedOverrides) -> None:
    with PrefillClient() as client, pytest.raises(RequestError, match=f"^{field}: "):
        client.score([5], [[1]], [1], embed_overrides=overrides)
