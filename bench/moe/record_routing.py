"""Record how small mixture-of-experts models route: ``python -m bench.moe.record_routing``.

The models are Qwen3-MoE of Hugging Face with random weights, because no trained one is small enough
to be kept. Tokens are drawn by Zipf's law, which words of a text follow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from bench.moe.routing import RECORDED

MODELS = ((128, 8), (32, 4), (8, 2))
TOKENS = (256, 2304, 576, 1152, 4608, 320, 2304, 8192, 1728, 2304)
"""Tokens of each forward, in order; requests of different sizes follow each other."""
VOCABULARY, PROMPT = 4096, 64


def main() -> None:
    torch.manual_seed(0)
    forwards = [each for model in MODELS for each in recorded_of(*model)]
    about = "Qwen3-MoE with random weights, 3 layers; counts of rows by layer and expert"
    lines = ",\n".join(json.dumps(each) for each in forwards)
    RECORDED.write_text(f'{{"about": "{about}", "forwards": [\n{lines}\n]}}\n')
    print(f"written: {RECORDED}, {len(forwards)} forwards")


def recorded_of(experts: int, top_k: int) -> Iterator[dict[str, Any]]:
    """Run one model on all lengths; yields one record per forward."""
    model = _model(experts, top_k)
    rng = np.random.default_rng(experts)
    for tokens in TOKENS:
        ids = torch.from_numpy(rng.zipf(1.3, (tokens // PROMPT, PROMPT)) % VOCABULARY)
        with torch.no_grad():
            logits = model(ids, output_router_logits=True).router_logits
        counts = [
            torch.bincount(layer.topk(top_k, -1).indices.flatten(), minlength=experts).tolist()
            for layer in logits
        ]
        yield {"experts": experts, "top_k": top_k, "tokens": tokens, "counts": counts}


def _model(experts: int, top_k: int) -> Qwen3MoeForCausalLM:
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            intermediate_size=64,
            moe_intermediate_size=16,
            num_experts=experts,
            num_experts_per_tok=top_k,
        )
    )
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=1.0 if "embed" in name else weight.shape[-1] ** -0.5)
    return model.eval()


if __name__ == "__main__":
    main()
