"""Chats get the ids, or the error, of SGLang's own function."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from sglang_prefill_ext.border import frontend_setup
from sglang_prefill_ext.border.tokenizer_manager import text_hooks
from sglang_prefill_ext.border.tokenizer_manager.frontend_link import TokenizerManagerLink
from sglang_prefill_ext.config import PrefillOnlyConfig, TokenizerChoice
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.texts import sample_texts
from sglang_prefill_ext.texts.libraries import FastokensEncoder
from tests.unit.border.tokenizer_manager.test_text_hooks import model_config
from tests.unit.texts.made import json_of

CONFIG = PrefillOnlyConfig(tokenizer=TokenizerChoice.HUGGINGFACE)
TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "llama": "<s>{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "[{{ m.role }}] {{ m.content | trim }}</s>{% endfor %}",
    "tools": "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}{{ mood }}",
}
TEXTS = st.text() | st.sampled_from(
    [*sample_texts.texts(300, ["<s>", "<|im_end|>"]), *sample_texts.UNREADABLE]
)
ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": ROLES, "content": TEXTS | st.lists(st.fixed_dictionaries({"text": TEXTS}))}
    ),
    max_size=4,
)
HOW = st.fixed_dictionaries(
    {
        "tools": st.sampled_from([None, [{"type": "function", "function": {"name": "f"}}]]),
        "template_kwargs": st.sampled_from([{}, {"mood": "glad"}, {"tokenize": True}]),
        "encode_kwargs": st.sampled_from([{}, *({"add_special_tokens": b} for b in (True, False))]),
        "add_generation_prompt": st.booleans(),
        "use_cache": st.just(False),
    }
)
CHAT = [{"role": "user", "content": "is this the word?"}]
PLAIN: dict[str, Any] = {
    "tools": None,
    "template_kwargs": {},
    "encode_kwargs": {"add_special_tokens": False},
    "use_cache": False,
}


DECODER = model_config()


class Serving(OpenAIServingChat):
    """SGLang's own functions, with only the attributes that they read."""

    def __init__(self, kind: str, template: str = "chatml", fast: bool = True) -> None:
        cutting = Tokenizer.from_str(json_of(kind))
        cutting.enable_truncation(4)  # as many models' files say; no request asks for it
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=cutting, bos_token="<s>")
        tokenizer.chat_template = TEMPLATES[template]
        self.tokenizer_manager: Any = SimpleNamespace(tokenizer=tokenizer, model_config=DECODER)
        self.template_manager: Any = SimpleNamespace(python_chat_template=None)
        self._prompt_text_round_trip_is_lossy = False
        self.metrics = FrontendMetrics()
        self.texts = TokenizerManagerLink(self.tokenizer_manager, CONFIG, self.metrics).texts
        assert self.texts.wait_until_ready(60)
        if fast:
            self.texts._ways.encoder = FastokensEncoder(json_of(kind))
        self.tokenizer_manager._prefill_only = SimpleNamespace(chats=self.texts)

    def both(self, messages: Any, **how: Any) -> list[Any]:
        """The results of SGLang and of the hook for a chat."""
        stock = OpenAIServingChat._render_and_encode_chat_template
        return [
            _outcome(lambda: stock(self, messages, **how)),
            _outcome(lambda: text_hooks.encode_chat(stock, self, messages, **how)),
        ]

    @property
    def encoded(self) -> int:
        return self.metrics.totals["chats"]


serving_of = cache(Serving)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("kind", ["llama3", "qwen"])
@settings(max_examples=40)
@given(messages=MESSAGES, how=HOW)
def test_a_chat_has_stocks_ids_or_its_error(
    kind: str, template: str, messages: Any, how: dict[str, Any]
) -> None:
    stock, ours = serving_of(kind, template).both(messages, **how)
    assert ours == stock


def test_a_library_that_differs_is_given_up() -> None:
    serving = Serving("llama3")
    serving.texts._ways.encoder = FastokensEncoder(json_of("qwen"))
    stock, ours = serving.both(CHAT, **PLAIN)
    assert ours == stock
    assert serving.metrics.totals["encoding_mismatches"] == 1
    assert not serving.texts.is_fast


def test_without_a_faster_library_chats_are_left_to_sglang() -> None:
    serving = Serving("llama3", fast=False)
    stock, ours = serving.both(CHAT, **PLAIN)
    assert ours == stock
    assert serving.encoded == 0


@pytest.mark.parametrize("unusual", ["lossy", "python template", "multimodal"])
def test_what_is_unusual_is_left_to_sglang(unusual: str) -> None:
    serving = Serving("llama3")
    serving._prompt_text_round_trip_is_lossy = unusual == "lossy"
    serving.template_manager.python_chat_template = "glm" if unusual == "python template" else None
    how = PLAIN | {"use_cache": unusual == "multimodal"}

    def original(_: Any, messages: Any, **given: Any) -> Any:
        return messages, given

    found = text_hooks.encode_chat(original, serving, CHAT, **how)
    assert found == (CHAT, how | {"add_generation_prompt": True})
    assert serving.encoded == 0


@pytest.mark.parametrize("where", ["class", "instance"])
def test_a_tokenizer_that_encodes_in_its_own_way_is_left_alone(where: str) -> None:
    class Own(PreTrainedTokenizerFast):
        def encode(self, *args: Any, **kwargs: Any) -> list[int]:
            return [1]

    kind = Own if where == "class" else PreTrainedTokenizerFast
    tokenizer = kind(tokenizer_object=Tokenizer.from_str(json_of("llama3")))
    if where == "instance":
        tokenizer.encode = lambda *args, **kwargs: [1]
    for each in (tokenizer, None):
        assert not frontend_setup._encodes_chats_as_texts(each)


def _outcome(ask: Any) -> Any:
    try:
        return ask()
    except Exception as error:
        return type(error), str(error)
