"""What an engine tells routers of a fleet of itself."""

from __future__ import annotations

from typing import Any

from sglang.srt.entrypoints.openai.protocol import V1RerankReqInput
from sglang.srt.entrypoints.openai.serving_rerank import _detect_rerank_backend

from sglang_prefill_ext.attach.carrier import Offer, Reranking
from sglang_prefill_ext.border.model.capability import encoder_traits
from sglang_prefill_ext.border.tokenizer_manager.attached import AttachableEngine


def offer_of(app: Any, manager: Any, engine: AttachableEngine) -> Offer:
    """Return the offer as it is now; the weights may have been replaced since the last one."""
    model = manager.model_config
    heads, head_dim = model.num_attention_heads, model.head_dim
    return Offer(
        facts=engine.facts(),
        served_name=manager.served_model_name or manager.model_path,
        model_path=manager.model_path,
        settings=_settings(manager),
        encoder=encoder_traits(model),
        reranking=_reranking(app, manager),
        shows_times=manager.enable_metrics,
        num_layers=model.num_hidden_layers or 0,
        attention_width=(heads or 0) * (head_dim or 0),
        parameters=_parameters_of_a_token(model.hf_text_config, heads, head_dim),
    )


def _settings(manager: Any) -> dict[str, str]:
    args = manager.server_args
    settings = {
        "--revision": args.revision,
        "--quantization": args.quantization,
        "--kv-cache-dtype": args.kv_cache_dtype,
        "--allow-auto-truncate": manager.allow_auto_truncate,
        "--enable-mis": args.enable_mis,
        "weight version": manager.config_value("weight_version"),
    }
    return {name: str(value) for name, value in settings.items()}


def _reranking(app: Any, manager: Any) -> Reranking | None:
    """How SGLang's own route asks a decoder reranker; None where it asks in another way."""
    template = getattr(manager.tokenizer, "chat_template", None)
    if not isinstance(template, str) or not manager.is_generation:
        return None
    request = V1RerankReqInput(query="q", documents=["d"])
    model = str(manager.model_config.model_path)
    backend = _detect_rerank_backend(request=request, chat_template=template, model_path=model)
    if backend != "text_decoder":
        return None
    serving = app.state.openai_serving_rerank
    return Reranking(template, serving._yes_token_id, serving._no_token_id)


def _parameters_of_a_token(config: Any, heads: int, head_dim: int) -> int:
    """Weights of the layers that one token is multiplied with, about; 0 if they are unknown."""
    hidden = getattr(config, "hidden_size", 0)
    inner = getattr(config, "intermediate_size", 0) or 0
    if experts := getattr(config, "num_experts_per_tok", 0):
        inner = experts * (getattr(config, "moe_intermediate_size", 0) or inner)
    kv_heads = getattr(config, "num_key_value_heads", heads) or heads
    if not hidden or not inner or not heads:
        return 0
    attention = 2 * hidden * head_dim * (heads + kv_heads)
    return int(getattr(config, "num_hidden_layers", 0) * (attention + 3 * hidden * inner))
