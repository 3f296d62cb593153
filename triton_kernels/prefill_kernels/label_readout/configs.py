"""Launch parameters of label_readout on Hopper, and the variants to compile."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from prefill_kernels.label_readout.kernel import block_lse_kernel, label_logits_kernel
from prefill_kernels.variant import Variant

LABEL_BLOCK_DIM = 1024
LABEL_NUM_WARPS = 4
"""A program computes one label; with half precision, every thread loads 16 bytes at a time."""


@dataclass(frozen=True)
class Config:
    """Launch parameters of the pass over the vocabulary.

    Attributes:
        block_rows, block_vocab, block_dim: sizes of the blocks that are multiplied.
        num_warps: warps of one program.
        num_stages: blocks of `block_dim` that are loaded ahead.
    """

    block_rows: int
    block_vocab: int
    block_dim: int
    num_warps: int
    num_stages: int


# Up to 64 rows the pass waits for the weights: small programs, several on a multiprocessor, keep
# many loads in flight. With more rows it waits for the tensor cores: large blocks feed them.
# float32 has no tensor core of its precision and is here for parity, not for speed.
FEW_ROWS = Config(64, 128, 64, num_warps=4, num_stages=4)
MANY_ROWS = Config(128, 256, 64, num_warps=8, num_stages=3)
FLOAT32 = Config(32, 64, 32, num_warps=4, num_stages=2)


def config_for(num_rows: int, dtype: torch.dtype) -> Config:
    """The launch parameters of `num_rows` rows of this dtype."""
    if dtype == torch.float32:
        return FLOAT32
    return FEW_ROWS if num_rows <= FEW_ROWS.block_rows else MANY_ROWS


def variants() -> Iterator[Variant]:
    """Variants of both kernels; with a soft cap only the one in which it costs most."""
    for dtype in ("bf16", "fp32"):
        yield _labels_variant(dtype)
    for dtype in ("bf16", "fp16"):
        yield _lse_variant("few rows", dtype, FEW_ROWS)
        yield _lse_variant("many rows", dtype, MANY_ROWS)
    yield _lse_variant("many rows, soft cap", "bf16", MANY_ROWS, softcap=30.0)
    yield _lse_variant("any rows", "fp32", FLOAT32)


def _labels_variant(dtype: str) -> Variant:
    return Variant(
        f"labels, {dtype}",
        label_logits_kernel,
        _operands(dtype)
        | {"label_ids": "*i64:16", "label_rows": "*i64:16", "logits": "*fp32:16"}
        | {"vocab_start": "i32:16"},
        {"SOFTCAP": 0.0, "BLOCK_DIM": LABEL_BLOCK_DIM},
        num_warps=LABEL_NUM_WARPS,
    )


def _lse_variant(name: str, dtype: str, config: Config, softcap: float = 0.0) -> Variant:
    return Variant(
        f"log-sum-exp, {name}, {dtype}",
        block_lse_kernel,
        _operands(dtype) | {"block_lse": "*fp32:16", "num_rows": "i32", "block_lse_stride": "i32"},
        {
            "SOFTCAP": softcap,
            "BLOCK_ROWS": config.block_rows,
            "BLOCK_VOCAB": config.block_vocab,
            "BLOCK_DIM": config.block_dim,
        },
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        needs_wgmma=dtype != "fp32",
    )


def _operands(dtype: str) -> dict[str, str]:
    """Arguments of both kernels; the sizes of real models are multiples of 16."""
    return {
        "hidden": f"*{dtype}:16",
        "weight": f"*{dtype}:16",
        "vocab_size": "i32:16",
        "dim": "i32:16",
        "hidden_stride": "i32:16",
        "weight_stride": "i32:16",
        "scale": "fp32",
    }
