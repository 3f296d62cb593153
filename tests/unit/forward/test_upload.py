from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st
from torch import Tensor

from sglang_prefill_ext.forward.upload import ForwardCompletion, in_one_buffer, tensors_in, upload

ARRAYS = st.sampled_from([np.int32, np.int64, np.float16, np.float32]).flatmap(
    lambda dtype: np_st.arrays(dtype, np_st.array_shapes(min_dims=1, max_dims=3, min_side=0))
)


def on_the_cpu(arrays: Sequence[np.ndarray]) -> list[Tensor]:
    return upload(arrays, torch.device("cpu"))


def through_a_buffer(arrays: Sequence[np.ndarray]) -> list[Tensor]:
    """Upload as to another device, by a transfer that keeps the bytes."""
    return tensors_in(in_one_buffer(arrays, pinned=False).clone(), arrays)


each_way = pytest.mark.parametrize("way", [on_the_cpu, through_a_buffer])


@each_way
@given(arrays=st.lists(ARRAYS, max_size=6))
def test_every_array_arrives_as_it_is(
    way: Callable[[Sequence[np.ndarray]], list[Tensor]], arrays: list[np.ndarray]
) -> None:
    for tensor, array in zip(way(arrays), arrays, strict=True):
        assert tensor.dtype == torch.from_numpy(array).dtype
        assert tensor.shape == array.shape
        assert tensor.numpy().tobytes() == array.tobytes()
        assert tensor.is_contiguous()


@given(st.lists(ARRAYS, min_size=2, max_size=6))
def test_arrays_lie_aligned_in_one_buffer(arrays: list[np.ndarray]) -> None:
    buffer = in_one_buffer(arrays, pinned=False)
    for tensor in tensors_in(buffer, arrays):
        assert tensor.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
        assert tensor.storage_offset() * tensor.element_size() % 16 == 0


@each_way
def test_strided_arrays_are_copied_in_order(
    way: Callable[[Sequence[np.ndarray]], list[Tensor]],
) -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    (columns, backwards) = way([array.T, array[::-1, ::2]])
    assert columns.tolist() == array.T.tolist()
    assert backwards.tolist() == array[::-1, ::2].tolist()


@each_way
def test_what_arrives_does_not_change_with_the_array(
    way: Callable[[Sequence[np.ndarray]], list[Tensor]],
) -> None:
    array = np.arange(4, dtype=np.int32)
    (tensor,) = way([array])
    array[:] = 0
    assert tensor.tolist() == [0, 1, 2, 3]


def test_other_dtypes_have_no_place_in_the_buffer() -> None:
    floats = [np.zeros(3, dtype=np.float64)]
    with pytest.raises(KeyError):
        tensors_in(in_one_buffer(floats, pinned=False), floats)


def test_values_arrive_as_float32() -> None:
    with torch.inference_mode():
        completion = ForwardCompletion(torch.tensor([0.5, -1.25]))
    assert completion.done()
    values = completion.wait()
    assert values.tolist() == [0.5, -1.25]
    assert values.dtype == np.float32


def test_waiting_again_gives_the_same_values() -> None:
    completion = ForwardCompletion(torch.tensor([3.0]))
    assert completion.wait().tolist() == completion.wait().tolist() == [3.0]


def test_a_forward_without_rows_has_no_values() -> None:
    assert ForwardCompletion(torch.empty(0)).wait().shape == (0,)
