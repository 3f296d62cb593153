"""When bodies are answered without SGLang's record, on stand-ins for its manager."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sglang.srt.environ import envs
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_prefill_ext.border.tokenizer_manager import direct_generate
from sglang_prefill_ext.border.tokenizer_manager.call_context import CallContext
from sglang_prefill_ext.border.tokenizer_manager.call_records import CallRecords
from sglang_prefill_ext.border.tokenizer_manager.direct_generate import DirectGenerate
from sglang_prefill_ext.border.tokenizer_manager.token_output import ReasoningCount
from sglang_prefill_ext.errors import PackedForwardError, ServerBusyError
from sglang_prefill_ext.frontend import worker
from sglang_prefill_ext.frontend.batch_exchange import ReadOut
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.token.generate_api import read_request
from sglang_prefill_ext.frontend.token.token_call import token_call_of
from sglang_prefill_ext.wire.checks import wrong
from sglang_prefill_ext.wire.stock_reason import StockReason
from tests.unit.frontend.links import StubLink, answered_meanwhile, path_of
from tests.unit.frontend.token.token_requests import NoGrammars

VOCABULARY = 100
TOKEN = 7
PLAIN = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}


class Tokenizer:
    eos_token_id = 2

    def decode(self, ids: list[int], **_how: Any) -> str:
        return "".join(f"<{each}>" for each in ids)


class Frontend:
    """Answers every call with the same token."""

    def __init__(self) -> None:
        self.path = path_of(StubLink(), vocab_size=VOCABULARY)
        self.declines = False

    def call_of(self, request: Any, stop_tokens: Any, first: Any) -> Any:
        return token_call_of(request, stop_tokens, first)

    async def read_all(self, calls: list[Any], _options: Any, _request: Any) -> list[ReadOut]:
        if self.declines:
            raise StockPathTaken(StockReason.ROW_OVER_BUDGET)
        table = np.array([[-0.5, TOKEN]], dtype=np.float32)
        return [ReadOut(table, 1, queue_s=0.25) for _ in calls]


def manager(**changes: Any) -> SimpleNamespace:
    quiet = {
        "tokenizer": Tokenizer(),
        "model_config": SimpleNamespace(
            vocab_size=VOCABULARY,
            hf_eos_token_id=None,
            hf_text_config=SimpleNamespace(vocab_size=VOCABULARY),
        ),
        "server_args": SimpleNamespace(speculative_algorithm=None, disaggregation_mode="null"),
        "rid_to_state": {},
        "sampling_params_class": SamplingParams,
        "request_logger": SimpleNamespace(log_requests=False),
        "request_metrics_exporter_manager": SimpleNamespace(exporter_enabled=lambda: False),
        "config_value": lambda name: {"weight_version": "v1"}[name],
    }
    switches = "enable_metrics enable_trace dump_requests_folder crash_dump_folder"
    off = dict.fromkeys([*switches.split(), "preferred_sampling_params"])
    return SimpleNamespace(**(quiet | off | changes))


def server_on(manager: SimpleNamespace) -> Any:
    records, reasoning = CallRecords(manager), ReasoningCount()
    return SimpleNamespace(
        manager=manager, records=records, texts=None, reasoning=reasoning, grammars=NoGrammars()
    )


def answer(
    body: dict[str, Any], frontend: Frontend | None = None, headers: Any = None, **changes: Any
) -> Any:
    """The answer to a body, or None for what is left to SGLang."""
    read = read_request(json.dumps(body).encode())
    assert read is not None
    asked = manager(**changes)
    direct = DirectGenerate(server_on(asked), frontend or Frontend())  # type: ignore[arg-type]
    context = CallContext(SimpleNamespace(headers=headers or {}))
    content = asyncio.run(direct.answer(read, context))
    assert asked.rid_to_state == {}
    return None if content is None else json.loads(content)


def test_every_prompt_of_a_call_that_ends_with_an_error_is_counted() -> None:
    class Busy(Frontend):
        async def read_all(self, *_asked: Any) -> list[ReadOut]:
            raise ServerBusyError("busy")

    frontend = Busy()
    with pytest.raises(ServerBusyError):
        answer(PLAIN | {"input_ids": [[5], [6], [7, 8]]}, frontend)
    assert frontend.path.metrics.as_dict()["requests"] == {"rejected": 3}


async def test_a_large_answer_leaves_the_event_loop_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frontend, small = Frontend(), PLAIN | {"return_logprob": True}
    large = small | {"input_ids": [[5], [6, 7, 8]]}
    monkeypatch.setattr(worker, "_INLINE_TOKENS", 2)
    asked = manager()
    direct = DirectGenerate(server_on(asked), frontend)  # type: ignore[arg-type]

    async def ask(body: dict[str, Any]) -> Any:
        read = read_request(json.dumps(body).encode())
        assert read is not None
        content = await direct.answer(read, CallContext(None))
        return json.loads(content or "null")

    found = await answered_meanwhile(
        ask(large), lambda: ask(small), direct_generate, "answer_of", monkeypatch
    )
    assert [each["output_ids"] for each in found] == [[TOKEN], [TOKEN]]


@pytest.mark.parametrize(("characters", "times"), [(8, 1), (70_000, 2)])
async def test_only_short_sampling_parameters_are_kept(characters: int, times: int) -> None:
    checked = list[Any]()
    asked = manager(sampling_params_class=lambda **of: checked.append(of) or SamplingParams(**of))
    direct = DirectGenerate(server_on(asked), Frontend())  # type: ignore[arg-type]
    sampling = PLAIN["sampling_params"] | {"regex": "a" * characters}  # type: ignore[operator]
    body = read_request(json.dumps(PLAIN | {"sampling_params": sampling}).encode())
    assert body is not None
    answers = [await direct.answer(body, CallContext(None)) for _ in range(2)]
    assert all(each is not None for each in answers)
    assert len(checked) == times


@pytest.mark.parametrize("fails", [False, True])
def test_an_adapter_is_held_until_its_prompts_are_read(*, fails: bool) -> None:
    held, seen = [], []
    states: dict[str, Any] = {}

    async def acquire(request: Any) -> None:
        assert states  # SGLang does not end before the call
        request.lora_id = f"id of {request.lora_path}"
        held.append(request.lora_id)

    async def release(adapter: str) -> None:
        held.remove(adapter)

    class Adapted(Frontend):
        async def read_all(self, calls: list[Any], *asked: Any) -> list[ReadOut]:
            seen.extend((call.adapter, *held) for call in calls)
            return await super().read_all(calls, *asked)

    frontend, registry = Adapted(), SimpleNamespace(release=release)
    frontend.declines = fails
    body = PLAIN | {"input_ids": [[5], [6]], "lora_path": "a"}
    adapters = {"_validate_and_resolve_lora": acquire, "lora_registry": registry}
    found = answer(body, frontend, rid_to_state=states, **adapters)
    assert (found is None) is fails
    assert seen == [("id of a", "id of a")] * 2
    assert held == []


@pytest.mark.parametrize(
    "changes",
    [
        {"enable_trace": True},
        {"dump_requests_folder": "there"},
        {"crash_dump_folder": "there"},
        {"preferred_sampling_params": {"top_k": 3}},
        {"request_logger": SimpleNamespace(log_requests=True)},
        {"request_metrics_exporter_manager": SimpleNamespace(exporter_enabled=lambda: True)},
        {"server_args": SimpleNamespace(speculative_algorithm="NGRAM", disaggregation_mode="null")},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_where_something_wants_a_record_sglang_makes_it(changes: dict[str, Any]) -> None:
    assert answer(PLAIN, **changes) is None


def test_where_headers_may_name_requests_sglang_reads_them() -> None:
    with envs.SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES.override(True):
        assert answer(PLAIN) is None
    assert answer(PLAIN) is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"rid": "named"},
        {"rid": ""},
        {"return_logprob": True, "top_logprobs_num": -1},
        {"return_logprob": True, "token_ids_logprob": []},
        {"sampling_params": {"max_new_tokens": 1, "temperature": -1.0}},
        {"text": "a", "input_ids": [5]},
    ],
    ids=str,
)
def test_what_is_not_plainly_right_is_sglangs(fields: dict[str, Any]) -> None:
    assert answer(PLAIN | fields) is None


def test_a_defect_of_ours_is_told_and_not_blamed_on_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Defective(Frontend):
        async def read_all(self, calls: list[Any], _options: Any, _request: Any) -> list[ReadOut]:
            raise ValueError("could not broadcast")

    with pytest.raises(PackedForwardError, match="could not broadcast") as caught:
        answer(PLAIN, Defective())
    assert caught.value.status_code == 500  # type: ignore[attr-defined]
    assert "could not broadcast" in caplog.text
    caplog.clear()
    assert answer(PLAIN | {"sampling_params": {"max_new_tokens": 1, "temperature": -1}}) is None
    assert not caplog.records


def test_without_a_tokenizer_there_is_no_text() -> None:
    plain, found = answer(PLAIN), answer(PLAIN, tokenizer=None)
    assert list(plain) == ["text", "output_ids", "meta_info"]
    assert list(found) == ["output_ids", "meta_info"]
    assert found["output_ids"] == plain["output_ids"] == [TOKEN]
    assert list(found["meta_info"]) == list(plain["meta_info"])
    ends = SimpleNamespace(vocab_size=VOCABULARY, hf_eos_token_id={TOKEN})
    found = answer(PLAIN, tokenizer=None, model_config=ends)
    assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": TOKEN}


def test_without_a_tokenizer_sglang_refuses_stop_strings() -> None:
    sampling = {"max_new_tokens": 1, "temperature": 0, "stop": "a"}
    assert answer(PLAIN | {"sampling_params": sampling}, tokenizer=None) is None


def test_texts_of_a_manager_that_encodes_them_itself_are_sglangs() -> None:
    assert answer({"text": "a", "sampling_params": PLAIN["sampling_params"]}) is None


def test_what_the_packed_path_declines_is_sglangs_and_not_counted_yet() -> None:
    frontend = Frontend()
    frontend.declines = True
    assert answer(PLAIN, frontend) is None
    assert frontend.path.metrics.as_dict()["fallbacks"] == {}


def test_what_sglang_is_to_judge_is_counted_only_where_it_does() -> None:
    class Refusing(Frontend):
        def call_of(self, request: Any, stop_tokens: Any, first: Any) -> Any:
            raise wrong("top_logprobs_num", "too many numbers")

    frontend = Refusing()
    assert answer(PLAIN, frontend) is None
    assert frontend.path.metrics.as_dict()["requests"] == {}
