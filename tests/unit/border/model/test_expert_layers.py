"""What layers of experts look up, inside a packed forward and outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.state_capturer import routed_experts

from sglang_prefill_ext.border.model import expert_layers
from sglang_prefill_ext.border.model.expert_layers import expert_settings

CAPTURER: Any = object()


class Looked:
    """SGLang's settings of the model that was loaded last."""

    shared_experts = "of another"

    @contextmanager
    def override(self, shared_experts: str) -> Iterator[None]:
        before, self.shared_experts = self.shared_experts, shared_experts
        yield
        self.shared_experts = before


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    settings, resources = Looked(), SimpleNamespace(experts_capturer=None)
    monkeypatch.setattr(expert_layers, "get_model", lambda: settings)
    monkeypatch.setattr(routed_experts, "get_resources", lambda: resources)
    return settings


def test_nothing_is_set_where_all_is_as_the_model_wants_it(looked: Looked) -> None:
    assert expert_settings(SimpleNamespace(shared_experts_config="of another")) is nullcontext


@pytest.mark.parametrize("shared", ["own", "of another"])
def test_packed_forwards_leave_the_record_of_stock_requests_alone(
    looked: Looked, shared: str
) -> None:
    routed_experts.set_global_experts_capturer(CAPTURER)
    settings = expert_settings(SimpleNamespace(shared_experts_config=shared))
    for _ in range(2):
        with settings():
            assert looked.shared_experts == shared
            assert routed_experts.get_global_experts_capturer() is None
        assert looked.shared_experts == "of another"
        assert routed_experts.get_global_experts_capturer() is CAPTURER


def test_a_forward_that_fails_gives_back_what_it_has_set(looked: Looked) -> None:
    routed_experts.set_global_experts_capturer(CAPTURER)
    with (
        pytest.raises(MemoryError),
        expert_settings(SimpleNamespace(shared_experts_config="own"))(),
    ):
        raise MemoryError
    assert routed_experts.get_global_experts_capturer() is CAPTURER
