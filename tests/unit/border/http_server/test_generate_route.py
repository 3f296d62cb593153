"""What is read at once must be what FastAPI would have made of the body."""

from __future__ import annotations

import json
import warnings
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from sglang_prefill_ext.frontend.token.generate_api import read_request

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang's, about kernels that this machine lacks
    from sglang.srt.entrypoints.api_contract import generate_contract_error
    from sglang.srt.managers.io_struct import GenerateReqInput

_INT = st.integers(-(2**63), 2**63 - 1)
_SAMPLING = st.fixed_dictionaries(
    {"max_new_tokens": st.sampled_from([0, 1])},
    optional={
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1),
        "top_k": st.integers(-1, 100),
        "min_p": st.floats(0, 1),
        "sampling_seed": st.integers(0, 2**62),
        "ignore_eos": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "spaces_between_special_tokens": st.booleans(),
        "no_stop_trim": st.booleans(),
    },
)
_BODIES = st.fixed_dictionaries(
    {"sampling_params": _SAMPLING},
    optional={
        "text": st.text() | st.lists(st.text()),
        "input_ids": st.lists(_INT, min_size=1) | st.lists(st.lists(_INT), min_size=1),
        "rid": st.text(),
        "return_logprob": st.booleans(),
        "logprob_start_len": st.integers(-2, 2**31 - 1),
        "top_logprobs_num": st.integers(0, 2**31 - 1),
        "token_ids_logprob": st.lists(st.integers(0, 2**31 - 1)),
        "return_text_in_logprobs": st.booleans(),
        "stream": st.booleans(),
    },
)
_FROM_FASTAPI = TypeAdapter(GenerateReqInput)


@given(_BODIES)
def test_the_same_request_as_from_fastapi(body: dict[str, Any]) -> None:
    read = read_request(json.dumps(body).encode())
    assert read is not None
    assert generate_contract_error(body) is None
    assert GenerateReqInput(**read.arguments()) == _FROM_FASTAPI.validate_python(body)
