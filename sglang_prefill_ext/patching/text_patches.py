"""What is changed where SGLang encodes texts; a part of `table.PATCHES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_CHAT_HOOKS = "sglang_prefill_ext.border.tokenizer_manager.text_hooks"
_HOOKS = "sglang_prefill_ext.border.tokenizer_manager.text_hooks"
_TOKENIZER_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"

_CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"

_CHATS = ("0027-offer-rendered-chats.patch",)
_TEXTS = ("0025-encode-texts-off-the-event-loop.patch",)

TEXT_PATCHES: tuple[Patch, ...] = (
    Patch(
        id="P56",
        target=f"{_TOKENIZER_MANAGER}._tokenize_texts",
        kind=Kind.AROUND,
        hook=f"{_HOOKS}:tokenize_texts",
        group=Group.FRONTEND,
        why="Texts of concurrent requests would be encoded one by one on the event loop.",
        relies_on="self.async_dynamic_batch_tokenizer self.model_config.is_embedding_gemma",
        diffs=_TEXTS,
    ),
    Patch(
        id="P57",
        target=f"{_TOKENIZER_MANAGER}._handle_batch_request",
        kind=Kind.AROUND,
        hook=f"{_HOOKS}:handle_batch",
        group=Group.FRONTEND,
        why="So would the texts of a list, each waiting for the one before it.",
        relies_on="obj.batch_size self._tokenize_one_request",
        diffs=_TEXTS,
    ),
    Patch(
        id="P59",
        target=f"{_CHAT}._render_and_encode_chat_template",
        kind=Kind.AROUND,
        hook=f"{_CHAT_HOOKS}:encode_chat",
        group=Group.FRONTEND,
        why="Encoding a chat would take several times as long as rendering it.",
        relies_on="self._prompt_text_round_trip_is_lossy "
        "self.template_manager.python_chat_template "
        "self.tokenizer_manager.tokenizer.apply_chat_template parallel_prompt_encode",
        diffs=_CHATS,
    ),
    Patch(
        id="P60",
        target=f"{_CHAT}._convert_to_internal_request",
        kind=Kind.AROUND,
        hook=f"{_CHAT_HOOKS}:convert_chat",
        group=Group.FRONTEND,
        why="The thread that encodes a chat does not know whether its client wants the stock path.",
        relies_on="self._process_messages",
        diffs=_CHATS,
    ),
)
