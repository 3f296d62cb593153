from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from sglang_prefill_ext.oneshot.upload import upload

CPU = torch.device("cpu")
ARRAYS = st.sampled_from([np.int32, np.int64, np.float16, np.float32]).flatmap(
    lambda dtype: np_st.arrays(dtype, np_st.array_shapes(min_dims=1, max_dims=3, min_side=0))
)


@given(st.lists(ARRAYS, max_size=6))
def test_every_array_arrives_as_it_is(arrays: list[np.ndarray]) -> None:
    tensors = upload(arrays, CPU)
    for tensor, array in zip(tensors, arrays, strict=True):
        assert tensor.dtype == torch.from_numpy(array).dtype
        assert tensor.shape == array.shape
        assert tensor.numpy().tobytes() == array.tobytes()
        assert tensor.is_contiguous()


@given(st.lists(ARRAYS, min_size=2, max_size=6))
def test_arrays_lie_aligned_in_one_buffer(arrays: list[np.ndarray]) -> None:
    tensors = upload(arrays, CPU)
    base = tensors[0].untyped_storage()
    for tensor in tensors:
        assert tensor.untyped_storage().data_ptr() == base.data_ptr()
        assert tensor.storage_offset() * tensor.element_size() % 16 == 0


def test_strided_arrays_are_copied_in_order() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    (columns, backwards) = upload([array.T, array[::-1, ::2]], CPU)
    assert columns.tolist() == array.T.tolist()
    assert backwards.tolist() == array[::-1, ::2].tolist()


def test_other_dtypes_are_not_taken() -> None:
    with pytest.raises(KeyError):
        upload([np.zeros(3, dtype=np.float64)], CPU)
