"""What packed forwards use of SGLang's models and layers; a part of `uses.USES`."""

from __future__ import annotations

from sglang_prefill_ext.patching.spec import Group, Use

_EXECUTOR = "sglang.srt.model_executor"
_LAYERS = "sglang.srt.layers"
_RESIDUAL = f"{_LAYERS}.layer_boundary.residual.stream.ResidualStream"

MODEL_USES = (
    Use(
        id="U30",
        target="sglang.srt.managers.tp_worker.TpModelWorker",
        group=Group.SCHEDULER,
        used_by=(
            *("border.scheduler.runtime_setup", "border.model.capability"),
            "border.scheduler.ask_both_paths",
        ),
        why="the way to the model runner",
        members=("model_runner",),
    ),
    Use(
        id="U31",
        target=f"{_EXECUTOR}.model_runner.ModelRunner",
        group=Group.SCHEDULER,
        used_by=(
            *(
                "border.model.decoder_model",
                "border.scheduler.kv_pool",
                "border.scheduler.packed_work",
                "border.scheduler.ask_both_paths",
            ),
            "border.model.sampler",
        ),
        why="model and its kind, device, pool, attention backend, sampler, how decode steps are "
        "launched",
        members=(
            *(
                "model",
                "attn_backend",
                "device",
                "model_config",
                "token_to_kv_pool",
                "dtype",
                "sampler",
            ),
            *("decode_cuda_graph_captured", "is_generation", "kv_cache_dtype", "lora_manager"),
        ),
    ),
    Use(
        id="U32",
        target="sglang.srt.configs.model_config.ModelConfig",
        group=Group.SCHEDULER,
        used_by=(
            *(
                "border.tokenizer_manager.attached",
                "border.model.decoder_model",
                "border.tokenizer_manager.frontend_hooks",
                "border.tokenizer_manager.frontend_link",
            ),
            *(
                "border.tokenizer_manager.embed_hooks",
                "border.scheduler.ask_both_paths",
                "border.model.capability",
                "border.tokenizer_manager.text_hooks",
            ),
            "border.model.encoder_model",
        ),
        why="which token ids, labels and embeddings are valid; names of classes; whether weights "
        "are quantised",
        members=(
            *("vocab_size", "hidden_size", "hf_config", "hf_text_config", "quantization", "dtype"),
            *("context_len", "model_path", "is_embedding_gemma"),
        ),
    ),
    Use(
        id="U33",
        target=f"{_EXECUTOR}.forward_batch_info.ForwardBatch",
        group=Group.SCHEDULER,
        used_by=(
            *(
                "border.model.decoder_model",
                "border.model.attention_backend",
                "border.model.adapters",
                "border.model.encoder_model",
            ),
        ),
        why="the batch of a packed forward",
        members=(
            *(
                "forward_mode",
                "batch_size",
                "input_ids",
                "positions",
                "req_pool_indices",
                "seq_lens",
            ),
            *("seq_lens_sum", "out_cache_loc", "extend_num_tokens", "extend_seq_lens"),
            *("extend_seq_lens_cpu", "extend_prefix_lens", "extend_prefix_lens_cpu"),
            *("capture_hidden_mode", "global_num_token_non_padded_cpu", "is_prefill_only"),
            *(
                "residual_stream",
                "return_pooled_hidden_states",
                "lora_ids",
                "token_indices_to_pool",
            ),
            *("token_type_ids", "dcp_kv_mask"),
        ),
    ),
    Use(
        id="U34",
        target=f"{_EXECUTOR}.forward_batch_info.CaptureHiddenMode",
        group=Group.SCHEDULER,
        used_by=("border.model.decoder_model",),
        why="a packed forward captures no hidden states",
        members=("NULL",),
    ),
    Use(
        id="U35",
        target=f"{_EXECUTOR}.forward_context.ForwardContext",
        group=Group.SCHEDULER,
        used_by=("border.model.decoder_model",),
        why="carries our attention backend",
        members=("attn_backend",),
    ),
    Use(
        id="U36",
        target=f"{_EXECUTOR}.forward_context.forward_context",
        group=Group.SCHEDULER,
        used_by=("border.model.decoder_model",),
        why="puts it in force for one forward",
        signature="(ctx, *, forward_batch=None)",
    ),
    Use(
        id="U37",
        target="sglang.srt.runtime_context.get_model",
        group=Group.SCHEDULER,
        used_by=("border.model.decoder_model",),
        why="the configuration that MoE layers read",
        signature="()",
    ),
    Use(
        id="U38",
        target="sglang.srt.runtime_context._ConfigBag.override",
        group=Group.SCHEDULER,
        used_by=("border.model.decoder_model",),
        why="sets it for one forward, as the model runner does",
        signature="(self, **kwargs)",
    ),
    Use(
        id="U39",
        target=f"{_LAYERS}.attention.base_attn_backend.AttentionBackend.forward_extend",
        group=Group.SCHEDULER,
        used_by=("border.model.attention_backend",),
        why="what our attention backend overrides",
        signature="(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs)",
    ),
    Use(
        id="U40",
        target=f"{_LAYERS}.radix_attention.RadixAttention",
        group=Group.SCHEDULER,
        used_by=(
            "border.model.attention_backend",
            "border.model.capability",
            "border.model.decoder_model",
        ),
        why="shape and kind of a layer's attention",
        members=(
            *("layer_id", "tp_q_head_num", "tp_k_head_num", "tp_v_head_num", "qk_head_dim"),
            *("v_head_dim", "scaling", "sliding_window_size", "logit_cap", "is_cross_attention"),
            *("logit_capping_method", "attn_type", "use_irope", "xai_temperature_len"),
        ),
    ),
    Use(
        id="U41",
        target=_RESIDUAL,
        group=Group.SCHEDULER,
        used_by=("border.model.attention_backend",),
        why="the last layer goes on with the read positions alone",
        members=("residual",),
    ),
    Use(
        id="U42",
        target=f"{_RESIDUAL}.write",
        group=Group.SCHEDULER,
        used_by=("border.model.attention_backend",),
        why="takes their residuals",
        signature="(self, residual)",
    ),
)
