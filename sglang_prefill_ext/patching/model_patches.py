"""What is changed in SGLang's model layers; a part of `table.PATCHES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_PROCESSOR = "sglang.srt.layers.logits_processor"

MODEL_PATCHES: tuple[Patch, ...] = (
    Patch(
        id="P54",
        target=f"{_PROCESSOR}.LogitsProcessor._get_logits",
        kind=Kind.AROUND,
        hook="sglang_prefill_ext.border.cpu.soft_cap:capped_on_host",
        group=Group.SCHEDULER,
        why="Without a GPU a model with a soft cap of its logits would answer nothing: the cap is "
        "a Triton kernel. On a GPU the hook does nothing.",
        signature="(self, hidden_states, lm_head, logits_metadata, embedding_bias=None, "
        "use_logits_buffer=True)",
        relies_on=("self.final_logit_softcapping",),
        fingerprints={"0.5.23": "f8e18998b53a8344ef2efcfc60d96abfac0434b2857952c801ef6d0d95e417ef"},
        diffs=("0024-soft-cap-of-logits-on-the-cpu.patch",),
        remove_when=(f"{_PROCESSOR}.soft_cap_logits",),
    ),
)
