"""Read labels from hidden states without the logits of the whole vocabulary."""

import torch
import triton
from torch import Tensor

from prefill_kernels.errors import FLOATS, check_launchable, check_tensor, require
from prefill_kernels.label_readout.configs import LABEL_BLOCK_DIM, LABEL_NUM_WARPS, config_for
from prefill_kernels.label_readout.kernel import block_lse_kernel, label_logits_kernel

INDEX_DTYPES = (torch.int32, torch.int64)


def label_readout(
    hidden: Tensor,
    weight: Tensor,
    label_ids: Tensor,
    label_rows: Tensor,
    *,
    normalised: bool,
    vocab_start: int = 0,
    scale: float = 1.0,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor | None]:
    """Logits of chosen labels and, if asked, what normalises them over the vocabulary.

    With `logits = softcap * tanh(scale * hidden @ weight.T / softcap)`::

        label_logits[i] = logits[label_rows[i], label_ids[i] - vocab_start]
        lse[r] = log(sum_v exp(logits[r, v]))

    so that `label_logits - lse[label_rows]` is the natural log-probability of each label. Products
    accumulate in float32 and are never rounded to the dtype of the inputs. The pass over the
    vocabulary keeps one float32 per row and block of at least 64 tokens, never a logit.

    Source: the blockwise log-sum-exp of cut cross-entropy (Wijmans et al. 2024, section 4.2).

    Args:
        hidden: `[rows, dim]` bfloat16, float16 or float32; any row stride. No row is allowed.
        weight: `[vocabulary, dim]`, this rank's shard of the output embedding, of the same dtype;
            any row stride. Rows that only pad the vocabulary must be cut off.
        label_ids: int32 or int64 `[labels]`, contiguous; token ids of the whole vocabulary.
        label_rows: as `label_ids`; the row of `hidden` from which each label is read. Neither the
            ids nor the rows are checked, which would wait for the device: a row that `hidden` does
            not have reads foreign memory.
        normalised: also pass over the vocabulary; otherwise `lse` is None.
        vocab_start: token id of the first row of `weight`, >= 0. A label that this shard does not
            hold gets -inf, so the largest value of all ranks is that of the whole vocabulary.
        scale: factor of every logit.
        softcap: bound of every scaled logit by tanh; 0 for none.

    Returns:
        `label_logits` float32 `[labels]` and `lse` float32 `[rows]` (natural log) or None.

    Raises:
        KernelArgumentError: a dtype, shape, stride, device or number that the kernel cannot take;
            nothing was launched.
    """
    _check(hidden, weight, label_ids, label_rows)
    require(vocab_start >= 0, "vocab_start", vocab_start, "pass the id of the first token, or 0")
    require(softcap >= 0, "softcap", softcap, "pass a positive bound, or 0 for none")
    logits = _label_logits(hidden, weight, label_ids, label_rows, vocab_start, scale, softcap)
    return logits, _vocabulary_lse(hidden, weight, scale, softcap) if normalised else None


def _check(hidden: Tensor, weight: Tensor, label_ids: Tensor, label_rows: Tensor) -> None:
    check_launchable("hidden", hidden)
    place = hidden.device
    check_tensor("hidden", hidden, (None, None), FLOATS, place)
    check_tensor("weight", weight, (None, hidden.shape[1]), (hidden.dtype,), place)
    require(weight.shape[0] > 0, "weight", f"of shape {list(weight.shape)}", "pass a token's row")
    check_tensor("label_ids", label_ids, (None,), INDEX_DTYPES, place)
    check_tensor("label_rows", label_rows, label_ids.shape, INDEX_DTYPES, place)


def _label_logits(
    hidden: Tensor,
    weight: Tensor,
    label_ids: Tensor,
    label_rows: Tensor,
    vocab_start: int,
    scale: float,
    softcap: float,
) -> Tensor:
    logits = torch.empty(label_ids.shape, dtype=torch.float32, device=hidden.device)
    if logits.numel():
        label_logits_kernel[(logits.numel(),)](
            *(hidden, weight, label_ids, label_rows, logits, vocab_start),
            *(weight.shape[0], hidden.shape[1], hidden.stride(0), weight.stride(0), scale),
            SOFTCAP=softcap,
            BLOCK_DIM=LABEL_BLOCK_DIM,
            num_warps=LABEL_NUM_WARPS,
            num_stages=1,
        )
    return logits


def _vocabulary_lse(hidden: Tensor, weight: Tensor, scale: float, softcap: float) -> Tensor:
    (num_rows, dim), vocab_size = hidden.shape, weight.shape[0]
    config = config_for(num_rows, hidden.dtype)
    vocab_blocks = triton.cdiv(vocab_size, config.block_vocab)
    block_lse = torch.empty((num_rows, vocab_blocks), dtype=torch.float32, device=hidden.device)
    if num_rows:
        block_lse_kernel[(triton.cdiv(num_rows, config.block_rows), vocab_blocks)](
            *(hidden, weight, block_lse, num_rows, vocab_size, dim),
            *(hidden.stride(0), weight.stride(0), block_lse.stride(0), scale),
            SOFTCAP=softcap,
            BLOCK_ROWS=config.block_rows,
            BLOCK_VOCAB=config.block_vocab,
            BLOCK_DIM=config.block_dim,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )
    return torch.logsumexp(block_lse, dim=1)
