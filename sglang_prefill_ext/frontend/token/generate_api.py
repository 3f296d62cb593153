"""Reads and writes plain bodies of ``POST /generate`` that ask for log-probs or one token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from sglang_prefill_ext.frontend.answers import in_parts
from sglang_prefill_ext.frontend.options import Int64, decoded
from sglang_prefill_ext.frontend.token.token_answer import TokenAnswer

_Number: TypeAlias = Int64 | float
"""A number with the type that the client sent: SGLang refuses 2 and 2.0 in different words."""


class _Sampling(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    max_new_tokens: Literal[0, 1]
    temperature: _Number | UnsetType = UNSET
    top_p: _Number | UnsetType = UNSET
    top_k: Int64 | UnsetType = UNSET
    min_p: _Number | UnsetType = UNSET
    sampling_seed: Int64 | UnsetType = UNSET
    ignore_eos: bool | UnsetType = UNSET
    skip_special_tokens: bool | UnsetType = UNSET
    spaces_between_special_tokens: bool | UnsetType = UNSET
    stop: str | list[str] | UnsetType = UNSET
    no_stop_trim: bool | UnsetType = UNSET
    json_schema: str | UnsetType = UNSET
    regex: str | UnsetType = UNSET
    ebnf: str | UnsetType = UNSET
    structural_tag: str | UnsetType = UNSET


class GenerateBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A body with nothing unusual in it."""

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

    def arguments(self) -> dict[str, Any]:
        """The arguments of SGLang's `GenerateReqInput`."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields

    @property
    def sampling_key(self) -> bytes:
        """Equal for bodies with equal sampling parameters; see `sampling_arguments`."""
        return msgspec.msgpack.encode(self.sampling_params)  # JSON has no infinite numbers

    @property
    def is_single(self) -> bool:
        """One prompt, not in a list; its answer is not in a list either."""
        if isinstance(self.input_ids, list):
            return not isinstance(self.input_ids[0], list)
        return isinstance(self.text, str)

    @property
    def prompts(self) -> list[Any]:
        """Texts, or lists of ids."""
        given: Any = self.text if self.input_ids is UNSET else self.input_ids
        return [given] if self.is_single else given

    @property
    def wants_logprobs(self) -> bool:
        return self.return_logprob is True

    @property
    def needs_no_request_state(self) -> bool:
        """Whether the request can be answered without SGLang's record of it.

        It can if the client gives it no name (`rid`), nothing is streamed, and log-probs come
        without the texts of their tokens.
        """
        has_prompts = (self.text is UNSET) != (self.input_ids is UNSET) and bool(self.prompts)
        asks = self.wants_logprobs or self.sampling_params.max_new_tokens == 1
        more = self.stream or self.return_text_in_logprobs
        # SGLang refuses some empty names.
        return has_prompts and asks and self.rid is UNSET and self.lora_path != "" and not more


_DECODER = msgspec.json.Decoder(GenerateBody)

_TRIPLES_AT_A_TIME = 4096
"""Triples written as JSON in one step; each has one number."""


def read_request(body: bytes) -> GenerateBody | None:
    """Read a body; None if SGLang is to read it."""
    read = decoded(_DECODER.decode, body)
    given = UNSET if read is None else read.input_ids
    return None if isinstance(given, list) and len(set(map(type, given))) != 1 else read


def sampling_arguments(key: bytes) -> dict[str, Any]:
    """The arguments of SGLang's `SamplingParams`, from a `GenerateBody.sampling_key`."""
    fields: dict[str, Any] = msgspec.msgpack.decode(key)
    return fields


def answer_body(answers: list[dict[str, Any]], *, is_single: bool) -> bytes:
    """Write the answers; a list for a list of prompts."""
    return msgspec.json.encode(answers[0] if is_single else in_parts(answers))


def logprob_fields(
    answer: TokenAnswer, *, num_top: int, token_ids: tuple[int, ...] | None
) -> dict[str, Any]:
    """The log-probs of a prompt as SGLang's `meta_info` has them: value, token id, no text.

    Long lists are JSON already, see `in_parts`.

    Args:
        num_top, token_ids: see `TokenCall`.
    """
    output = _triples(answer.output_token_logprobs_val, answer.output_token_logprobs_idx)
    of_prompt = _triples(answer.input_token_logprobs_val, answer.input_token_logprobs_idx)
    fields: dict[str, Any] = {
        "input_token_logprobs": in_parts(of_prompt, _TRIPLES_AT_A_TIME),
        "output_token_logprobs": output,
        "output_token_logprobs_length": len(output),
    }
    for name, wanted in (("top", num_top > 0), ("token_ids", token_ids is not None)):
        for side in ("input", "output") if wanted else ():
            values, ids = (
                getattr(answer, f"{side}_{name}_logprobs_{part}") for part in ("val", "idx")
            )
            rows = [_triples(*pair) if pair[0] else None for pair in zip(values, ids, strict=True)]
            fields[f"{side}_{name}_logprobs"] = in_parts(rows)
    return fields


def _triples(values: Iterable[Any], ids: Iterable[Any]) -> list[tuple[Any, Any, None]]:
    return [(value, token, None) for value, token in zip(values, ids, strict=True)]
