"""Options that clients set in HTTP headers, and the decoding of bodies, for all kinds of calls."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from sglang_prefill_ext.errors import ConfigError, RequestError

Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer as orjson takes it, with which SGLang reads bodies."""

T = TypeVar("T")

OPT_OUT_HEADER = "x-prefill-only"
PRIORITY_HEADER = "x-prefill-only-priority"
TIMEOUT_HEADER = "x-prefill-only-timeout-ms"
KEEP_PREFIX_HEADER = "x-prefill-only-keep-prefix"

ARRAYS_HEADER = "x-prefill-only-arrays"
"""Header of answers: scoring requests to this server may have token ids as base64 arrays."""

READS_ARRAYS = {ARRAYS_HEADER: "int32"}
"""Headers of answers on routes whose bodies may have arrays."""

JSON = "application/json"

_LARGEST = 2**31 - 1  # as in gRPC calls, which have 32 bits for a priority
_WHOLE_NUMBER = re.compile(r"[ \t]*[+-]?[0-9]{1,10}[ \t]*")  # httptools leaves spaces at the end


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """How one packed request is scheduled.

    Attributes:
        priority: higher is served first, if the order of the queue looks at priorities.
        deadline_ms: Unix time in ms after which nobody waits for the answer; None for no deadline.
        keep_prefix: the prefix will come again, so it is left in the prefix cache.
    """

    priority: int = 0
    deadline_ms: float | None = None
    keep_prefix: bool = False

    def within(self, timeout_ms: int) -> RequestOptions:
        """These options; without a deadline, with one in so many ms from now. 0 gives none."""
        if self.deadline_ms is not None or not timeout_ms:
            return self
        return replace(self, deadline_ms=time.time() * 1e3 + min(timeout_ms, _LARGEST))


def decoded(decode: Callable[[Any], T], body: Any) -> T | None:
    """Read a body, or the fields of one that is parsed already; None if it is not plainly right.

    Such a body is broken, has other types than the decoder's, or is nested too deep. It is left to
    SGLang, which refuses it in its own words, or serves it.
    """
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def says_json(headers: Mapping[str, str]) -> bool:
    """Whether the content type says that the body is JSON."""
    return headers.get("content-type", "").lower().split(";", 1)[0] == JSON


def headers_of(request: Any) -> Mapping[str, str]:
    """The headers of a client's request; empty if it did not come by HTTP."""
    return getattr(request, "headers", None) or {}


def opted_out(headers: Mapping[str, str]) -> bool:
    """Whether the client wants the stock path."""
    return _word(headers.get(OPT_OUT_HEADER, "")) == "off"


def options_of(headers: Mapping[str, str], now_ms: float) -> RequestOptions:
    """Read the options of a request.

    Args:
        headers: names in lower case.
        now_ms: Unix time in ms, from which the client's timeout counts.

    Raises:
        RequestError: a header has a wrong value.
    """
    _switch(headers, OPT_OUT_HEADER, default="on")
    priority = _number(headers, PRIORITY_HEADER, least=-_LARGEST)
    timeout_ms = _number(headers, TIMEOUT_HEADER, least=1)
    return RequestOptions(
        priority=priority or 0,
        deadline_ms=None if timeout_ms is None else now_ms + timeout_ms,
        keep_prefix=_switch(headers, KEEP_PREFIX_HEADER, default="off"),
    )


def authorization(api_key: str | None) -> dict[str, str]:
    """Return the header that shows a key, if there is one.

    Raises:
        ConfigError: no header can hold it.
    """
    if api_key is None:
        return {}
    if not isinstance(api_key, str):
        raise ConfigError(f"api_key: it is of {type(api_key).__name__}. Give a text.")
    if not (api_key.isascii() and api_key.isprintable()):
        raise ConfigError(
            "api_key: it contains characters that a header cannot hold, "
            "perhaps a line end at its end. Remove them."
        )
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def key_in(header: str) -> bytes:
    """The key that an authorization header shows, as SGLang takes it; empty if it shows none."""
    scheme, _, shown = header.partition(" ")
    return shown.encode() if scheme.lower() == "bearer" else b""


def headers_from(options: RequestOptions) -> dict[str, str]:
    """Headers that carry these options to another process; a deadline becomes the time left.

    gRPC allows one priority less than headers do; it becomes their least.
    """
    headers = {PRIORITY_HEADER: str(max(options.priority, -_LARGEST))}
    if options.keep_prefix:
        headers[KEEP_PREFIX_HEADER] = "on"
    if options.deadline_ms is not None:
        left_ms = int(options.deadline_ms - time.time() * 1e3)
        headers[TIMEOUT_HEADER] = str(min(max(1, left_ms), _LARGEST))
    return headers


def _number(headers: Mapping[str, str], header: str, least: int) -> int | None:
    text = headers.get(header)
    if text is None:
        return None
    if _WHOLE_NUMBER.fullmatch(text) and least <= int(text) <= _LARGEST:
        return int(text)
    raise RequestError(
        f"{header}: {text!r} is not a whole number from {least} to {_LARGEST}. "
        "Send such a number, or leave the header out."
    )


def _switch(headers: Mapping[str, str], header: str, *, default: str) -> bool:
    text = headers.get(header, default)
    if (word := _word(text)) in ("on", "off"):
        return word == "on"
    raise RequestError(f"{header}: {text!r} is neither on nor off. Leave it out for {default}.")


def _word(text: str) -> str:
    return text.strip(" \t").lower()
