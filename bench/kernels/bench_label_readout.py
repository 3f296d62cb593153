"""Time label_readout against PyTorch, which materialises the logits of the whole vocabulary.

Run as ``python -m bench.kernels.bench_label_readout``. It reads two labels per row. The output
embeddings have the sizes of Qwen3-0.6B (151,936 x 1,024) and Llama-3-8B (128,256 x 4,096).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from prefill_kernels.label_readout import label_readout
from torch import Tensor

from bench.kernels.harness import Case, cuda_device, measure

DTYPE = torch.bfloat16
LABELS_PER_ROW = 2


def main() -> None:
    torch.manual_seed(0)
    measure(cases(cuda_device()))


def cases(device: torch.device) -> Iterator[Case]:
    for (vocabulary, dim), rows in product(((151_936, 1024), (128_256, 4096)), (1, 50, 500, 4000)):
        yield make_case(rows, dim, vocabulary, device)


def make_case(rows: int, dim: int, vocabulary: int, device: torch.device) -> Case:
    hidden = torch.randn(rows, dim, dtype=DTYPE, device=device)
    weight = torch.randn(vocabulary, dim, dtype=DTYPE, device=device) * dim**-0.5
    label_rows = torch.arange(rows, device=device).repeat_interleave(LABELS_PER_ROW)
    label_ids = torch.randint(vocabulary, label_rows.shape, device=device)

    def ours() -> tuple[Tensor, ...]:
        logits, lse = label_readout(hidden, weight, label_ids, label_rows, normalised=True)
        assert lse is not None
        return logits, lse

    def whole_vocabulary() -> tuple[Tensor, ...]:
        logits = torch.matmul(hidden, weight.T)
        return logits[label_rows, label_ids].float(), torch.logsumexp(logits.float(), dim=1)

    return Case(
        "label_readout",
        {"rows": rows, "dim": dim, "vocabulary": vocabulary},
        DTYPE,
        moved_bytes=hidden.nbytes + weight.nbytes,
        flops=2 * rows * dim * vocabulary,
        tolerance=3e-2,  # PyTorch rounds its logits, which are up to about 6, to bfloat16
        ours={"label_readout": lambda: ours},
        baselines={"torch": lambda: whole_vocabulary},
    )


if __name__ == "__main__":
    main()
