from __future__ import annotations

import numpy as np
import torch

from sglang_prefill_ext.forward.upload import ForwardCompletion


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
