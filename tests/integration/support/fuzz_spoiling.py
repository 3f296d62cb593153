"""Makes invalid bodies of valid ones, and the JSON to send for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

from tests.integration.support.client import VOCABULARY, Json


class Raw(str):
    """A piece of JSON text that is sent unchanged."""

    __slots__ = ()


_NUMBERS = [
    *(0, 1, -1, 2, 1.0, 1.5, -0.5, 1e-9, 1e308, VOCABULARY - 1, VOCABULARY),
    *(2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 2**70, -(2**31) - 1, -(2**63)),
    *map(Raw, ("NaN", "Infinity", "-Infinity", "1e999", "-0", "-0.0", "1E2", "01", "1.", "+1")),
]
_STRINGS = [
    "",
    " ",
    "5",
    "1",
    "0",
    "-1",
    "1.0",
    "true",
    "null",
    "text",
    "\0",
    "\ufffe",
    "a" * 3_000,
]
_RAW_STRINGS = map(Raw, ('"\\ud800"', '"\\udc00x"', '"\\u0000"', '"\\x"', "'a'", '"\t"', "tru"))
_NESTED = [
    *([], [[]], [None], [[], []], [1], [[1]], [[[1]]], [1, "a"], ["a", None], [[1], [2, "x"]]),
    *(["a"], ["a", "b"], ["a", "a"], [0, 1], [None, None], [True, False], [0.5]),
    *([True], ["5"], [1.0], [1.5], [-1], [VOCABULARY], [2**63], [2**70], [[1], 2], [1, [2]]),
    *({}, {"a": 1}, {"text": "a"}, {"values": "AQAAAA=="}, [{"text": "a"}], [{}]),
    *map(Raw, ("[" * 2_000 + "]" * 2_000, '{"a":' * 2_000 + "1" + "}" * 2_000, "[1,]", "")),
]
ODD: list[Any] = [None, True, False, *_NUMBERS, *_STRINGS, *_RAW_STRINGS, *_NESTED]

# What would make a request generate as long as the context is. No spoiling removes these.
LIMITS = ("max_new_tokens", "max_tokens", "max_completion_tokens", "n", "best_of", "beam_width")
_SHORT: list[Any] = [0, 1, -1, 2, 3, 1.0, 1.5, True, False, "1", "x", "", [1], {}, 2**70]

# Fields that some route has, for all of them.
_FIELDS = [
    *("text", "input_ids", "query", "items", "prompt", "messages", "input", "documents", "user"),
    *("label_token_ids", "apply_softmax", "temperature", "item_first", "return_token_logprobs"),
    *("return_pooled_hidden_states", "query_embed_overrides", "item_embed_overrides", "rid"),
    *("embed_override_token_id", "embed_overrides", "input_embed_overrides", "dimensions"),
    *("sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num", "stream"),
    *("token_ids_logprob", "return_text_in_logprobs", "echo", "logprobs", "top_logprobs"),
    *("lora_path", "priority", "stop", "seed", "logit_bias", "top_p", "top_k", "min_p", "model"),
    *("encoding_format", "input_embeds", "return_hidden_states", "session_params", "extra_key"),
    *("cache_salt", "session_id", "return_prompt_token_ids", "token_indices_to_pool", "n"),
    *("min_new_tokens", "stop_token_ids", "regex", "ignore_eos", "sampling_seed", "custom_params"),
    *("instruct", "top_n", "return_documents", "no_such_field", "log_metrics", "no_logs"),
    *("is_cross_encoder_request", "background", "routed_dp_rank", "tools", "response_format"),
    *("echo", "suffix", "chat_template_kwargs", "prompt_format_version", "images", "watermark"),
    *("positional_embed_overrides", "multi_item_delimiter_indices", "image_data", "bootstrap_room"),
    *("return_entropy", "return_sampling_mask", "return_flat_raw_top_logprobs", "min_tokens"),
]


@st.composite
def spoilt(draw: st.DrawFn, bodies: st.SearchStrategy[Json]) -> str:
    """The JSON of a body with one to three things changed in it."""
    body: Any = deepcopy(draw(bodies))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        _spoil(draw, body)
    text = encoded(body)
    if draw(st.integers(0, 15)) == 0:  # a field comes twice: both paths must take the same one
        name = draw(st.sampled_from(sorted(body) or ["a"]))
        again = encoded({name: body.get(name) if draw(st.booleans()) else draw(_odd(name))})
        text = text[:-1] + "," + again[1:] if body else again
    return text


def encoded(value: Any) -> str:
    """The JSON of a value, with `Raw` parts unchanged."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{encoded(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(encoded, value)) + "]"
    return json.dumps(value)


def _odd(name: Any) -> st.SearchStrategy[Any]:
    values = ODD if name not in LIMITS else list(filter(None, _SHORT)) if "max_" in name else _SHORT
    return st.sampled_from(values).map(deepcopy)


def _spoil(draw: st.DrawFn, body: Any) -> None:
    places = list(_places(body))
    if not places or draw(st.integers(0, 3)) == 0:
        inside = [body, *(v for v in body.values() if isinstance(v, dict))]
        name = draw(st.sampled_from(_FIELDS))
        draw(st.sampled_from(inside))[name] = draw(_odd(name))
        return
    holder, key = draw(st.sampled_from(places))
    kinds = ["replace", "replace", "replace", "retype", "listed", "twice", "remove"]
    kind = draw(st.sampled_from(kinds))
    value = holder[key]
    if kind == "remove" and key not in LIMITS:
        del holder[key]
    elif kind == "retype":
        holder[key] = _retyped(value)
    elif kind == "listed":
        holder[key] = [value]
    elif kind == "twice" and isinstance(value, list):
        holder[key] = value * 2
    else:
        holder[key] = draw(_odd(key))


def _retyped(value: Any) -> Any:
    """The same value as JSON of another type."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return float(value) if abs(value) < 2**53 else str(value)
    return str(value) if isinstance(value, float | list | dict) else {"": value}


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every field and element at any depth, as its container and key; vectors only as a whole."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        yield value, key
        if isinstance(inner, dict | list) and not _is_vector(inner):
            yield from _places(inner)


def _is_vector(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], float)
