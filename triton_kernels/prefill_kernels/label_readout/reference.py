"""label_readout in float64, with the logits of the whole vocabulary."""

import torch
from torch import Tensor


def label_readout_reference(
    hidden: Tensor,
    weight: Tensor,
    label_ids: Tensor,
    label_rows: Tensor,
    *,
    vocab_start: int = 0,
    scale: float = 1.0,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Label logits `[labels]` and log-sum-exp `[rows]` of `label_readout`, both float64."""
    logits = hidden.double() @ weight.double().T * scale
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    token = label_ids.long() - vocab_start
    held = (token >= 0) & (token < weight.shape[0])
    labels = logits[label_rows.long(), token.where(held, 0)]
    return labels.where(held, -torch.inf), torch.logsumexp(logits, dim=1)
