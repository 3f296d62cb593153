"""Changes to SGLang on the CPU reference platform only; part of `table.PATCHES`."""

from __future__ import annotations

from functools import partial

from sglang_prefill_ext.patching.spec import Group, Kind, Patch

_SRT = "sglang.srt"
_HOOKS = "sglang_prefill_ext.border.cpu"
_PAGEABLE_HOOK = f"{_HOOKS}.cpu_platform:without_pinning"

_around = partial(Patch, kind=Kind.AROUND, group=Group.CPU)

CPU_PATCHES: tuple[Patch, ...] = (
    _around(
        id="P50",
        target=f"{_SRT}.lora.lora_manager.LoRAManager.init_state",
        hook=_PAGEABLE_HOOK,
        why="A server with LoRA would not start: memory cannot be pinned without CUDA.",
        relies_on="self.init_lora_modules self.update_lora_info",
        diffs="0019",
    ),
    _around(
        id="P51",
        target=f"{_SRT}.lora.backend.torch_backend.TorchNativeLoRABackend.prepare_lora_batch",
        hook=_PAGEABLE_HOOK,
        why="As without P50, for every batch.",
        relies_on="torch.tensor self.batch_info",
        diffs="0019",
    ),
    _around(
        id="P54",
        target="sglang.kernels.ops.activation.softcap.softcap_inplace_logits",
        hook=f"{_HOOKS}.cpu_platform:capped_on_host",
        why="A model with a soft cap of its logits would answer nothing.",
        relies_on="full_logits final_logit_softcapping",
        diffs="0024",
    ),
    _around(
        id="P65",
        target=f"{_SRT}.models.deepseek_v2.DeepseekV2AttentionMLA.dispatch_attn_forward_method",
        hook=f"{_HOOKS}.attention:over_latents",
        why="A model with latent attention would answer nothing.",
        relies_on="self.current_attention_backend AttentionBackendRegistry",
        diffs="0037",
    ),
    _around(
        id="P80",
        target=f"{_SRT}.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_extend",
        hook=f"{_HOOKS}.attention:both_ways",
        why="EmbeddingGemma would see only what comes before a token.",
        relies_on="layer.attn_type self._run_sdpa_forward_extend",
        diffs="0052",
    ),
    _around(
        id="P66",
        target=f"{_SRT}.layers.attention.linear.gdn_backend.GDNAttnBackend.forward_extend",
        hook=f"{_HOOKS}.attention:carried",
        why="A model with a gated delta rule would answer nothing.",
        relies_on="self.req_to_token_pool self.forward_metadata",
        diffs="0038",
    ),
    _around(
        id="P67",
        target=f"{_SRT}.layers.attention.linear.gdn_backend.GDNAttnBackend.forward_decode",
        hook=f"{_HOOKS}.attention:carried",
        why="Such a model would generate nothing.",
        relies_on="self.req_to_token_pool self.forward_metadata",
        diffs="0038",
    ),
    _around(
        id="P68",
        target="sglang.kernels.ops.attention.fla.layernorm_gated.RMSNorm.forward",
        hook=f"{_HOOKS}.attention:gated_norm",
        why="Its gated norms would fail.",
        relies_on="self.weight self.eps self.activation self.group_size self.norm_before_gate",
        diffs="0038",
    ),
    _around(
        id="P69",
        target="sglang.kernels.ops.attention.triton_gdn_fused_proj."
        "fused_qkvzba_split_reshape_cat_contiguous",
        hook=f"{_HOOKS}.attention:divided",
        why="Its projections would fail.",
        relies_on="mixed_qkvz mixed_ba",
        diffs="0038",
    ),
    _around(
        id="P70",
        target="sglang.kernels.ops.elementwise.elementwise.fused_sigmoid_mul",
        hook=f"{_HOOKS}.attention:gated",
        why="Its gated attention would fail.",
        relies_on="attn_output gate",
        diffs="0038",
    ),
    _around(
        id="P71",
        target=f"{_SRT}.layers.attention.mamba.mamba.MambaMixer2.forward",
        hook=f"{_HOOKS}.recurrent:mixed",
        why="A model with Mamba-2 would answer nothing.",
        relies_on="self.in_proj self.conv1d self.norm self.out_proj metadata.mixed_metadata "
        "layer_cache.temporal",
        diffs="0039",
    ),
    _around(
        id="P72",
        target=f"{_SRT}.layers.attention.mamba.causal_conv1d.causal_conv1d_fn",
        hook=f"{_HOOKS}.recurrent:of_sequences",
        why="A model with short convolutions (LFM2) would answer nothing.",
        relies_on="query_start_loc conv_states has_initial_state",
        diffs="0039",
    ),
    _around(
        id="P73",
        target=f"{_SRT}.layers.attention.mamba.causal_conv1d.causal_conv1d_update",
        hook=f"{_HOOKS}.recurrent:of_tokens",
        why="Such a model would generate nothing.",
        relies_on="conv_state_indices",
        diffs="0039",
    ),
)
