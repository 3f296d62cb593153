"""Kernels run compiled on CUDA or in Triton's interpreter; each needs a process of its own.

Without a GPU: ``TRITON_INTERPRET=1 python -m pytest tests/kernels``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

# cuBLAS, which references on CUDA use, is deterministic only with a workspace of fixed size.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# Triton reads it when it is imported, so it must come from outside.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    importlib.import_module("tests.interpreting").install()
COMPILED = torch.cuda.is_available() and not INTERPRETED

# `tl.dot` of bfloat16 is silently wrong in the interpreter.
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * COMPILED

STOCK_TOLERANCE = 5e-3 if COMPILED else 1e-5
"""By how much SGLang's kernels may differ in float32; compiled, they multiply in TF32, which has
eleven bits."""


@pytest.fixture(scope="session", autouse=True)
def device() -> torch.device:
    """Where the kernels run."""
    if not (COMPILED or INTERPRETED):
        pytest.fail(
            "kernels need a CUDA device or the interpreter: TRITON_INTERPRET=1 python -m pytest "
            "tests/kernels",
            pytrace=False,
        )
    return torch.device("cuda" if COMPILED else "cpu")


@pytest.fixture(scope="session", params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Every dtype in which kernels compute correctly on this device, in turn."""
    chosen: torch.dtype = request.param
    return chosen


@pytest.fixture(scope="session", autouse=True)
def _fresh_tensors_hold_nan() -> Iterator[None]:
    """Let `torch.empty` give NaN (or the largest integer), to notice unwritten elements."""
    # It fills because `torch.utils.deterministic.fill_uninitialized_memory` is True by default.
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session", autouse=True)
def _moved_tensors_are_copies() -> Iterator[None]:
    """In the interpreter too, a tensor moved to the device is a copy, without gaps; see `on`."""
    move, changes = Tensor.to, pytest.MonkeyPatch()

    def moved(tensor: Tensor, *where: Any, **options: Any) -> Tensor:
        made = move(tensor, *where, **options)
        is_here = made is tensor and bool(where) and isinstance(where[0], torch.device)
        return made.clone() if is_here else made

    if INTERPRETED:
        changes.setattr(Tensor, "to", moved)
    yield
    changes.undo()
