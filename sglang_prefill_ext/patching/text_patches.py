"""What is changed where SGLang encodes texts; a part of `table.PATCHES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_HOOKS = "sglang_prefill_ext.compat.text_hooks"
_TOKENIZER_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"

_TEXTS = ("0025-encode-texts-off-the-event-loop.patch",)

# What the diff adds to SGLang: once a release has it, the hooks move there.
_HAS_TEXTS = (f"{_TOKENIZER_MANAGER}.encode_texts",)

TEXT_PATCHES: tuple[Patch, ...] = (
    Patch(
        id="P56",
        target=f"{_TOKENIZER_MANAGER}._tokenize_texts",
        kind=Kind.AROUND,
        hook=f"{_HOOKS}:tokenize_texts",
        group=Group.FRONTEND,
        why="Texts of concurrent requests would be encoded one by one on the event loop.",
        signature="(self, texts, is_cross_encoder=False)",
        relies_on=("self.async_dynamic_batch_tokenizer", "self.model_config.is_embedding_gemma"),
        fingerprints={"0.5.23": "bd8d9d8555149765d4c6b8178a471c3db4fc37a20ec396c5fff21e2add865e17"},
        diffs=_TEXTS,
        remove_when=_HAS_TEXTS,
    ),
    Patch(
        id="P57",
        target=f"{_TOKENIZER_MANAGER}._handle_batch_request",
        kind=Kind.AROUND,
        hook=f"{_HOOKS}:handle_batch",
        group=Group.FRONTEND,
        why="So would the texts of a list, each waiting for the one before it.",
        signature="(self, obj, request, request_states)",
        relies_on=("obj.batch_size", "self._tokenize_one_request"),
        fingerprints={"0.5.23": "a9202493777b956bea560a850f98dc7b990d1b7da79f0d1de946dd6df2874703"},
        diffs=_TEXTS,
        remove_when=_HAS_TEXTS,
    ),
)
