"""label_readout against float64, and what it must not read or hold."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
import torch
import triton
from hypothesis import given, settings
from hypothesis import strategies as st
from prefill_kernels.errors import KernelArgumentError
from prefill_kernels.label_readout import label_readout
from prefill_kernels.label_readout.configs import FEW_ROWS, FLOAT32, MANY_ROWS
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.kernels.devices import on
from tests.kernels.references import label_readout_reference

# The inputs are exact in both dtypes; float32 sums differ only by their order.
EPSILON = 2e-5


def _problem(
    device: torch.device, dtype: torch.dtype, *, rows: int, dim: int, vocabulary: int, labels: int
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(rows + dim + vocabulary)
    hidden = torch.randn(rows, dim, generator=generator)
    weight = torch.randn(vocabulary, dim, generator=generator) * 3 * dim**-0.5
    return {
        "hidden": hidden.to(device, dtype),
        "weight": weight.to(device, dtype),
        "label_ids": torch.randint(vocabulary, (labels,), generator=generator).to(device),
        "label_rows": torch.randint(max(rows, 1), (labels,), generator=generator).to(device),
    }


def _assert_read(problem: dict[str, Any], **options: Any) -> None:
    """Compare with the reference, normalised and not."""
    labels, lse = label_readout(**problem, **options, normalised=True)
    expected_labels, expected_lse = label_readout_reference(**problem, **options)
    assert lse is not None
    for got, expected in ((labels, expected_labels), (lse, expected_lse)):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), expected, atol=EPSILON, rtol=EPSILON)
    alone, nothing = label_readout(**problem, **options, normalised=False)
    assert torch.equal(alone, labels)
    assert nothing is None


@pytest.mark.parametrize(
    ("rows", "dim", "vocabulary", "labels"),
    [
        (1, 64, 128, 1),
        (3, 40, 1, 4),
        (5, 1, 300, 7),
        (33, 70, 257, 66),
        (64, 64, 256, 3),
        (65, 100, 513, 9),
        (130, 32, 140, 2),
        (2, 1100, 65, 5),
    ],
)
def test_reads_as_defined(
    device: torch.device, dtype: torch.dtype, rows: int, dim: int, vocabulary: int, labels: int
) -> None:
    _assert_read(_problem(device, dtype, rows=rows, dim=dim, vocabulary=vocabulary, labels=labels))


@settings(max_examples=25)
@given(
    rows=st.integers(1, 70),
    dim=st.integers(1, 80),
    vocabulary=st.integers(1, 150),
    labels=st.integers(0, 9),
    vocab_start=st.integers(0, 200),
)
def test_any_size(
    device: torch.device, rows: int, dim: int, vocabulary: int, labels: int, vocab_start: int
) -> None:
    problem = _problem(
        device, torch.float32, rows=rows, dim=dim, vocabulary=vocabulary, labels=labels
    )
    _assert_read(problem, vocab_start=vocab_start)


def test_log_probabilities(device: torch.device) -> None:
    problem = _problem(device, torch.float32, rows=4, dim=48, vocabulary=200, labels=6)
    labels, lse = label_readout(**problem, normalised=True)
    assert lse is not None
    expected = torch.log_softmax(problem["hidden"].double() @ problem["weight"].double().T, dim=1)
    rows, ids = problem["label_rows"], problem["label_ids"]
    torch.testing.assert_close(
        (labels - lse[rows]).double(), expected[rows, ids], atol=EPSILON, rtol=0
    )


@pytest.mark.parametrize("options", [{"scale": 0.25}, {"softcap": 2.0}, {"scale": 3, "softcap": 5}])
def test_scale_and_soft_cap(
    device: torch.device, dtype: torch.dtype, options: dict[str, float]
) -> None:
    _assert_read(_problem(device, dtype, rows=9, dim=50, vocabulary=150, labels=20), **options)


def test_large_logits_stay_finite(device: torch.device, dtype: torch.dtype) -> None:
    problem = _problem(device, dtype, rows=3, dim=50, vocabulary=150, labels=5)
    _assert_read(problem, scale=1e4)


@pytest.mark.parametrize(("rows", "labels"), [(0, 0), (3, 0)])
def test_nothing_to_read(device: torch.device, rows: int, labels: int) -> None:
    problem = _problem(device, torch.float32, rows=rows, dim=8, vocabulary=70, labels=labels)
    logits, lse = label_readout(**problem, normalised=True)
    assert lse is not None
    assert logits.shape == (0,)
    assert lse.shape == (rows,)
    assert lse.isfinite().all()


def test_strided_rows_and_narrow_indices(device: torch.device, dtype: torch.dtype) -> None:
    """Read-out positions are a slice of more hidden states; NaN lies between what is read."""
    problem = _problem(device, dtype, rows=6, dim=24, vocabulary=90, labels=8)
    for name in ("hidden", "weight"):
        wide = torch.full((2 * len(problem[name]), 40), torch.nan, device=device, dtype=dtype)
        wide[::2, 8:32] = problem[name]
        problem[name] = wide[::2, 8:32]
    for name in ("label_ids", "label_rows"):
        problem[name] = problem[name].int()
    _assert_read(problem)


def test_offsets_beyond_32_bits(device: torch.device) -> None:
    """Token 1 lies 2**31 elements behind token 0; the memory between them is never touched."""
    stride = 2**31 + 8
    far = torch.empty(0, dtype=torch.float16, device=device).untyped_storage()
    far.resize_(2 * (stride + 8))
    weight = torch.empty(0, dtype=torch.float16, device=device)
    weight.set_(far, 0, (2, 8), (stride, 1))
    weight[0], weight[1] = 1, 2
    hidden = torch.ones(1, 8, dtype=torch.float16, device=device)
    ids = torch.tensor([0, 1], device=device)
    labels, lse = label_readout(hidden, weight, ids, torch.zeros_like(ids), normalised=True)
    assert lse is not None
    assert labels.tolist() == [8, 16]
    torch.testing.assert_close(lse, torch.logsumexp(labels, dim=0, keepdim=True))


@pytest.mark.parametrize("cuts", [(0, 150), (0, 64, 150), (0, 1, 100, 149, 150)])
def test_shards_give_the_whole_vocabulary(device: torch.device, cuts: tuple[int, ...]) -> None:
    problem = _problem(device, torch.float32, rows=7, dim=40, vocabulary=150, labels=30)
    problem["label_ids"][-1] = 150  # which no rank holds
    expected_labels, expected_lse = label_readout_reference(**problem)
    weight = problem.pop("weight")
    ranks = [
        label_readout(**problem, weight=weight[start:stop], vocab_start=start, normalised=True)
        for start, stop in pairwise(cuts)
    ]
    gathered_labels, gathered_lse = (torch.stack(part) for part in zip(*ranks, strict=True))
    labels, lse = gathered_labels.amax(dim=0), gathered_lse.logsumexp(dim=0)
    assert labels[-1] == -torch.inf
    torch.testing.assert_close(labels.double(), expected_labels, atol=EPSILON, rtol=0)
    torch.testing.assert_close(lse.double(), expected_lse, atol=EPSILON, rtol=0)


def test_a_label_of_another_shard_is_not_read(device: torch.device) -> None:
    problem = _problem(device, torch.float32, rows=1, dim=8, vocabulary=4, labels=3)
    problem["label_ids"] = torch.tensor([9, 14, 10], device=device)
    problem["label_rows"] = torch.zeros_like(problem["label_ids"])
    labels, _ = label_readout(**problem, vocab_start=10, normalised=False)
    assert labels.isneginf().tolist() == [True, True, False]


@pytest.mark.parametrize("rows", [1, 130])
def test_never_holds_rows_times_vocabulary(
    device: torch.device, dtype: torch.dtype, rows: int
) -> None:
    vocabulary = 900
    problem = _problem(device, dtype, rows=rows, dim=16, vocabulary=vocabulary, labels=4)
    with _Largest(problem.values()) as largest:
        label_readout(**problem, normalised=True)
    smallest_block = min(c.block_vocab for c in (FEW_ROWS, MANY_ROWS, FLOAT32))
    assert 0 < largest.nbytes <= 4 * rows * -(-vocabulary // smallest_block)


def test_without_normalisation_the_vocabulary_is_not_read(device: torch.device) -> None:
    problem = _problem(device, torch.float32, rows=2, dim=16, vocabulary=500, labels=4)
    problem["label_ids"][:] = 5
    problem["weight"][:5] = torch.nan
    problem["weight"][6:] = torch.nan
    labels, _ = label_readout(**problem, normalised=False)
    assert labels.isfinite().all()
    with _Largest(problem.values()) as largest:
        label_readout(**problem, normalised=False)
    assert largest.nbytes == 4 * len(labels)


class _Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the largest tensor that any operation made; views of `known` do not count."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nbytes = 0
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.untyped_storage().data_ptr() not in self._known:
            self.nbytes = max(self.nbytes, result.nbytes)
        return result


HIDDEN, WEIGHT = torch.zeros(3, 8), torch.zeros(5, 8)
INDEX = torch.zeros(4, dtype=torch.int64)
ARGUMENTS = {"hidden": HIDDEN, "weight": WEIGHT, "label_ids": INDEX, "label_rows": INDEX}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("hidden", {"hidden": HIDDEN[0]}),
        ("hidden", {"hidden": HIDDEN.double()}),
        ("hidden", {"hidden": torch.zeros(8, 3).T}),
        ("weight", {"weight": WEIGHT[:, :7]}),
        ("weight", {"weight": WEIGHT.half()}),
        ("weight", {"weight": torch.zeros(8, 5).T}),
        ("weight", {"weight": WEIGHT[:0]}),
        ("label_ids", {"label_ids": INDEX.float()}),
        ("label_ids", {"label_ids": INDEX[None]}),
        ("label_ids", {"label_ids": INDEX[::2], "label_rows": INDEX[:2]}),
        ("label_rows", {"label_rows": INDEX[:3]}),
        ("label_rows", {"label_rows": INDEX.bool()}),
        ("vocab_start", {"vocab_start": -1}),
        ("softcap", {"softcap": -2.0}),
    ],
)
def test_refused(device: torch.device, name: str, changes: dict[str, Any]) -> None:
    moved: dict[str, Any] = {
        key: on(device, value) if isinstance(value, Tensor) else value
        for key, value in (ARGUMENTS | changes).items()
    }
    with pytest.raises(KernelArgumentError) as caught:
        label_readout(**moved, normalised=True)
    assert caught.value.name == name
    assert str(caught.value).startswith(f"{name} is ")


@pytest.mark.parametrize("name", ["weight", "label_ids", "label_rows"])
def test_another_device_is_refused(device: torch.device, name: str) -> None:
    moved: dict[str, Any] = {k: v.to("meta" if k == name else device) for k, v in ARGUMENTS.items()}
    with pytest.raises(KernelArgumentError, match=f"{name} is on meta"):
        label_readout(**moved, normalised=True)


def test_without_the_interpreter_a_cpu_tensor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(KernelArgumentError, match="TRITON_INTERPRET=1 before triton"):
        label_readout(HIDDEN, WEIGHT, INDEX, INDEX, normalised=False)
