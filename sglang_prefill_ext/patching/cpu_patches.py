"""Changes to SGLang on the CPU reference platform only; part of `table.PATCHES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_SRT = "sglang.srt"
_HOOKS = "sglang_prefill_ext.border.cpu"
_PAGEABLE_HOOK = f"{_HOOKS}.cpu_platform:without_pinning"

_PAGEABLE = ("0019-lora-without-pinned-memory.patch",)
_DELTA_RULE = "0038-gated-delta-rule-on-torch.patch"
_STATE_SPACE = "0039-state-spaces-and-convolutions-on-torch.patch"

_RECURRENT_LAYERS = (
    (
        "P66",
        f"{_SRT}.layers.attention.linear.gdn_backend.GDNAttnBackend.forward_extend",
        "delta_rule:carried",
        "a model with a gated delta rule would answer nothing",
        "self.req_to_token_pool self.forward_metadata",
        _DELTA_RULE,
    ),
    (
        "P67",
        f"{_SRT}.layers.attention.linear.gdn_backend.GDNAttnBackend.forward_decode",
        "delta_rule:carried",
        "such a model would generate nothing",
        "self.req_to_token_pool self.forward_metadata",
        _DELTA_RULE,
    ),
    (
        "P68",
        "sglang.kernels.ops.attention.fla.layernorm_gated.RMSNorm.forward",
        "delta_rule:gated_norm",
        "its gated norms would fail",
        "self.weight self.eps self.activation self.group_size self.norm_before_gate",
        _DELTA_RULE,
    ),
    (
        "P69",
        "sglang.kernels.ops.attention.triton_gdn_fused_proj."
        "fused_qkvzba_split_reshape_cat_contiguous",
        "delta_rule:divided",
        "its projections would fail",
        "mixed_qkvz mixed_ba",
        _DELTA_RULE,
    ),
    (
        "P70",
        "sglang.kernels.ops.elementwise.elementwise.fused_sigmoid_mul",
        "delta_rule:gated",
        "its gated attention would fail",
        "attn_output gate",
        _DELTA_RULE,
    ),
    (
        "P71",
        f"{_SRT}.layers.attention.mamba.mamba.MambaMixer2.forward",
        "state_space:mixed",
        "a model with state spaces (Mamba-2) would answer nothing",
        "self.in_proj self.conv1d self.norm self.out_proj metadata.mixed_metadata "
        "layer_cache.temporal",
        _STATE_SPACE,
    ),
    (
        "P72",
        f"{_SRT}.layers.attention.mamba.causal_conv1d.causal_conv1d_fn",
        "convolution:of_sequences",
        "a model with short convolutions (LFM2) would answer nothing",
        "query_start_loc conv_states has_initial_state",
        _STATE_SPACE,
    ),
    (
        "P73",
        f"{_SRT}.layers.attention.mamba.causal_conv1d.causal_conv1d_update",
        "convolution:of_tokens",
        "such a model would generate nothing",
        "conv_state_indices",
        _STATE_SPACE,
    ),
)
"""Id, target, hook, symptom, names, diff."""

CPU_PATCHES: tuple[Patch, ...] = (
    Patch(
        id="P50",
        target=f"{_SRT}.lora.lora_manager.LoRAManager.init_state",
        kind=Kind.AROUND,
        hook=_PAGEABLE_HOOK,
        group=Group.CPU,
        why="Memory cannot be pinned without a CUDA device, so a server with LoRA would not start.",
        relies_on="self.init_lora_modules self.update_lora_info",
        diffs=_PAGEABLE,
    ),
    Patch(
        id="P51",
        target=f"{_SRT}.lora.backend.torch_backend.TorchNativeLoRABackend.prepare_lora_batch",
        kind=Kind.AROUND,
        hook=_PAGEABLE_HOOK,
        group=Group.CPU,
        why="As without P50, for every batch.",
        relies_on="torch.tensor self.batch_info",
        diffs=_PAGEABLE,
    ),
    Patch(
        id="P54",
        target=f"{_SRT}.layers.logits_processor.LogitsProcessor._get_logits",
        kind=Kind.AROUND,
        hook="sglang_prefill_ext.border.cpu.cpu_platform:capped_on_host",
        group=Group.CPU,
        why="On a CPU, a model with a soft cap of its logits would answer nothing.",
        relies_on="self.final_logit_softcapping",
        diffs=("0024-soft-cap-of-logits-on-the-cpu.patch",),
    ),
    Patch(
        id="P65",
        target="sglang.srt.models.deepseek_v2.DeepseekV2AttentionMLA.dispatch_attn_forward_method",
        kind=Kind.AROUND,
        hook="sglang_prefill_ext.border.cpu.latent_attention:over_latents",
        group=Group.CPU,
        why="On a CPU, a model with latent attention would answer nothing.",
        relies_on="self.current_attention_backend AttentionBackendRegistry",
        diffs=("0037-latent-attention-on-torch-native.patch",),
    ),
    *(
        Patch(
            id=patch_id,
            target=target,
            kind=Kind.AROUND,
            hook=f"{_HOOKS}.{hook}",
            group=Group.CPU,
            why=f"On a CPU, {symptom}.",
            relies_on=names,
            diffs=(diff,),
        )
        for patch_id, target, hook, symptom, names, diff in _RECURRENT_LAYERS
    ),
)
