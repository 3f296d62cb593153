"""Bodies of ``POST /generate`` that ask for log-probs or one token, read in one step.

Only what is plainly right is read here; everything else is left to SGLang, in whose words it is
refused.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from sglang_prefill_ext.frontend.json_types import Int64


class _Sampling(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    max_new_tokens: Literal[0, 1]
    temperature: float | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    top_k: Int64 | UnsetType = UNSET
    min_p: float | UnsetType = UNSET
    sampling_seed: Int64 | UnsetType = UNSET
    ignore_eos: bool | UnsetType = UNSET
    skip_special_tokens: bool | UnsetType = UNSET
    spaces_between_special_tokens: bool | UnsetType = UNSET
    no_stop_trim: bool | UnsetType = UNSET


class _Body(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    sampling_params: _Sampling
    text: str | list[str] | UnsetType = UNSET
    input_ids: list[Int64 | list[Int64]] | UnsetType = UNSET
    rid: str | UnsetType = UNSET
    return_logprob: bool | UnsetType = UNSET
    logprob_start_len: Int64 | UnsetType = UNSET
    top_logprobs_num: Int64 | UnsetType = UNSET
    token_ids_logprob: list[Int64] | UnsetType = UNSET
    return_text_in_logprobs: bool | UnsetType = UNSET
    stream: bool | UnsetType = UNSET
    lora_path: str | UnsetType = UNSET


_DECODER = msgspec.json.Decoder(_Body)


def read_request(body: bytes) -> dict[str, Any] | None:
    """Read a body into arguments of SGLang's `GenerateReqInput`; None if SGLang is to read it."""
    try:
        read = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if isinstance(read.input_ids, list) and len(set(map(type, read.input_ids))) != 1:
        return None
    fields: dict[str, Any] = msgspec.to_builtins(read)
    return fields
