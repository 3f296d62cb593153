"""The alignment to which SGLang's DeepGEMM experts pad their rows: its hook, and its setup."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.layers import deep_gemm_wrapper
from sglang.srt.layers.deep_gemm_wrapper import compile_utils
from sglang.srt.layers.moe.utils import MoeRunnerBackend
from torch import Tensor

from sglang_prefill_ext.border.model.expert_layers import computed_with, expert_work, experts_of
from sglang_prefill_ext.config import MoePolicy, PrefillOnlyConfig
from sglang_prefill_ext.moe.policy import LARGE, SMALL, alignment_for

logger = logging.getLogger(__name__)

_ROWS = 96
"""Rows of each expert when the alignments are compared: one and a half blocks of the small one."""

_TOLERANCE = 1e-2
"""Largest difference between the alignments, relative to the largest number."""

_HOPPER = 9


class AlignmentHook:
    """State of the hook in this process, which runs one model.

    Attributes:
        reason: why SGLang's own choice stays; empty if the hook chooses.
    """

    def __init__(self) -> None:
        self.reason = "no experts"
        self._policy = MoePolicy.STOCK
        self._chosen: Counter[int] = Counter()

    def serve(self, policy: MoePolicy) -> None:
        """Choose alignments from now on."""
        self._policy, self.reason = policy, ""
        self._chosen.clear()

    def alignment(self, rows: int, experts: int, stock: int) -> int:
        """Return the alignment for a product.

        Args:
            stock: SGLang's own choice. It stays if it is not `LARGE`: other devices have kernels of
                other sizes, among which SGLang chooses by the number of rows.
        """
        if stock != LARGE or self.reason:
            return stock
        chosen = alignment_for(self._policy, rows, experts)
        self._chosen[chosen] += 1
        return chosen

    def as_dict(self) -> dict[str, Any]:
        """Return reason and counts, ready for JSON; ``chosen``: alignment -> number of products."""
        chosen = {str(alignment): calls for alignment, calls in sorted(self._chosen.items())}
        return {"reason": self.reason, "chosen": chosen}


ALIGNMENTS = AlignmentHook()
"""The hook's state in this process."""


def with_chosen_alignment(original: Callable[..., int], expected_m: int, num_groups: int) -> int:
    """AROUND `get_contiguous_layout_alignment`: return the chosen alignment.

    By it SGLang lays out the rows, and configures DeepGEMM for the products of that layout only.

    Args:
        expected_m: rows of all experts together, whatever the name says.
        num_groups: experts on this device.
    """
    return ALIGNMENTS.alignment(expected_m, num_groups, original(expected_m, num_groups))


def set_up_alignments(model: Any, device: torch.device, config: PrefillOnlyConfig) -> None:
    """Choose the alignment from now on, if DeepGEMM computes a model's experts on Hopper.

    First, one layer's experts are computed with both alignments and compared. Then the kernels of
    the small alignment are compiled, for all shapes whose kernels SGLang has compiled ahead.
    """
    try:
        ALIGNMENTS.reason = _reason(model, device, config)
        if not ALIGNMENTS.reason:
            ALIGNMENTS.serve(config.moe)
    except Exception as error:
        # Serving does not need this: SGLang's own choice is correct, and at worst slower.
        logger.warning("Experts: DeepGEMM's alignment stays", exc_info=True)
        ALIGNMENTS.reason = f"{type(error).__name__}: {error}"


def _reason(model: Any, device: torch.device, config: PrefillOnlyConfig) -> str:
    """Return why SGLang's choice stays; empty if the small alignment is ready."""
    if config.moe is MoePolicy.STOCK:
        return "asked for"
    if config.moe is MoePolicy.AUTO:
        return "auto leaves it to SGLang, until it is measured on a GPU"
    if not deep_gemm_wrapper.ENABLE_JIT_DEEPGEMM:
        return "SGLang runs without DeepGEMM here"
    computed = computed_with(MoeRunnerBackend.DEEP_GEMM, experts_of(model))
    if not computed:
        return "DeepGEMM computes no experts"
    if torch.cuda.get_device_capability(device)[0] != _HOPPER:
        return "SGLang chooses it by the rows on this device"
    if not _agree(computed, device):
        return f"results differ between {LARGE} and {SMALL} rows"
    _compile()
    return ""


@torch.no_grad()
def _agree(layers: Sequence[Any], device: torch.device) -> bool:
    """Whether the first layer's experts give the same numbers with both alignments."""
    with _compact_layout():
        stock, small = (_output(layers[0], alignment, device) for alignment in (LARGE, SMALL))
    return bool((stock - small).abs().max() <= _TOLERANCE * stock.abs().max())  # False for NaN


@contextmanager
def _compact_layout() -> Iterator[None]:
    """Make SGLang use the layout that has an alignment."""
    layout = envs.SGLANG_DEEPGEMM_STANDARD_LAYOUT
    before = layout.get() if layout.is_set() else None
    layout.set("compact")
    try:
        yield
    finally:
        if before is None:
            layout.clear()
        else:
            layout.set(before)


def _output(layer: Any, alignment: int, device: torch.device) -> Tensor:
    """The output of a layer if all hidden states are 1."""
    tokens = -(-layer.num_local_experts * _ROWS // (layer.top_k or 1))
    with deep_gemm_wrapper.contiguous_layout_alignment_scope(alignment):
        made: Any = expert_work(layer, tokens, device)()
    output: Tensor = made.hidden_states
    return output.float()


def _compile() -> None:
    """Compile the kernels that SGLang has compiled for its own alignment for the small one, too."""
    kinds = compile_utils.DeepGemmKernelType
    contiguous = (kinds.GROUPED_GEMM_NT_F8F8BF16_CONTIG, kinds.GROUPED_GEMM_NT_BF16_CONTIG)
    with deep_gemm_wrapper.contiguous_layout_alignment_scope(SMALL):
        for shape in [each for each in compile_utils._INITIALIZATION_DICT if each[0] in contiguous]:
            with compile_utils._local_rank_compile_lock(*shape):
                compile_utils._compile_deep_gemm_one_type_all(*shape, compile_utils._BUILTIN_M_LIST)
