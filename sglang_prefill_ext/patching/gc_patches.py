"""What is changed in SGLang for garbage collection; a part of `table.PATCHES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_CONTROL = "sglang_prefill_ext.border.gc_control"
_MANAGERS = "sglang.srt.managers"

_ROUND = ("0021-control-messages-to-every-process.patch",)

# What the diff adds to SGLang: once a release has it, the hooks move there.
_HAS_ROUND = (f"{_MANAGERS}.control_messages.register_control_handler",)

GC_PATCHES: tuple[Patch, ...] = (
    Patch(
        id="P43",
        target=f"{_MANAGERS}.tokenizer_manager.TokenizerManager.freeze_gc",
        kind=Kind.AROUND,
        hook="sglang_prefill_ext.border.tokenizer_manager.gc_frontend:freeze_gc",
        group=Group.FRONTEND,
        why="Garbage of the start would be frozen with the rest and never be collected; neither "
        "the tokenizer router nor attached front ends would freeze.",
        signature="(self)",
        relies_on=("FreezeGCReq", "gc_threshold", "self._dispatch_to_scheduler"),
        fingerprints={"0.5.23": "9f24041e08cc0edc03ccc8d0708d5f7b9237c0ca5a7a07171ffa2387c4c32fd1"},
        diffs=_ROUND,
        remove_when=_HAS_ROUND,
    ),
    Patch(
        id="P44",
        target=f"{_MANAGERS}.detokenizer_manager.DetokenizerManager.init_request_dispatcher",
        kind=Kind.AFTER,
        hook=f"{_CONTROL}:attach_detokenizer",
        group=Group.DETOKENIZER,
        why="Detokenizers would freeze, but neither collect before, nor unfreeze, nor report.",
        signature="(self)",
        relies_on=("self._request_dispatcher", "TypeBasedDispatcher", "FreezeGCReq"),
        fingerprints={"0.5.23": "8781d795e443e1fe30818ba897ad60746babce895ae89a18f4fcf1a66f76218c"},
        diffs=_ROUND,
        remove_when=_HAS_ROUND,
    ),
    Patch(
        id="P45",
        target=f"{_MANAGERS}.multi_tokenizer_mixin.MultiTokenizerRouter"
        "._distribute_result_to_workers",
        kind=Kind.AROUND,
        hook=f"{_CONTROL}:spread_to_workers",
        group=Group.FRONTEND,
        why="With several tokenizer workers only the one that was asked would act.",
        signature="(self, recv_obj)",
        relies_on=("BaseReq", "self.socket_mapping.send_output"),
        fingerprints={"0.5.23": "fb024dcc680d95ff8ee0ec3932f3fc972fb646612ae1262f5abcf9ff978cdb3d"},
        diffs=_ROUND,
        remove_when=_HAS_ROUND,
    ),
)
