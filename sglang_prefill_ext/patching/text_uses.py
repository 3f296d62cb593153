"""What encoding chats uses of SGLang and of transformers; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_HOOKS = ("border.tokenizer_manager.chat_hooks",)
_OPENAI = "sglang.srt.entrypoints.openai"
_TOKENIZER = "transformers.PreTrainedTokenizerBase"

TEXT_USES = (
    Use(
        id="U360",
        target=f"{_OPENAI}.parallel_prompt_encode.parallel_prompt_encode",
        group=Group.FRONTEND,
        used_by=_HOOKS,
        why="encodes a chat that the faster library cannot, or has the error",
        signature="(tokenizer, text, encode_kwargs=None)",
    ),
    Use(
        id="U361",
        target=f"{_OPENAI}.serving_chat.OpenAIServingChat",
        group=Group.FRONTEND,
        used_by=_HOOKS,
        why="whether a rendered chat may be encoded as a text",
        members=("tokenizer_manager", "template_manager", "_prompt_text_round_trip_is_lossy"),
    ),
    Use(
        id="U362",
        target="sglang.srt.parser.template_manager.TemplateManager",
        group=Group.FRONTEND,
        used_by=_HOOKS,
        why="templates in Python come in segments, which SGLang caches",
        members=("python_chat_template",),
    ),
    Use(
        id="U363",
        target=f"{_TOKENIZER}.encode",
        group=Group.FRONTEND,
        used_by=_HOOKS,
        why="how SGLang encodes a chat; makes the ids that a call of the tokenizer makes",
        signature="(self, text, text_pair=None, add_special_tokens=True, padding=False, "
        "truncation=None, max_length=None, stride=0, padding_side=None, return_tensors=None, "
        "**kwargs)",
    ),
    Use(
        id="U364",
        target=f"{_TOKENIZER}.apply_chat_template",
        group=Group.FRONTEND,
        used_by=_HOOKS,
        why="renders a chat",
        signature="(self, conversation, tools=None, documents=None, chat_template=None, "
        "add_generation_prompt=False, continue_final_message=False, tokenize=True, "
        "padding=False, truncation=False, max_length=None, return_tensors=None, "
        "return_dict=True, return_assistant_tokens_mask=False, tokenizer_kwargs=None, **kwargs)",
    ),
)
