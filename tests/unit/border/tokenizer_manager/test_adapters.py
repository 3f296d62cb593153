"""How long adapters are held, on a stand-in for SGLang's registry."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sglang_prefill_ext.border.tokenizer_manager.adapters import admitted_adapter
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.options import RequestOptions
from tests.unit.frontend.links import StubLink, path_of


class Manager:
    """Knows the adapter "a", and which ids are held."""

    def __init__(self) -> None:
        self.lora_registry = self
        self.held: list[str] = []

    async def _validate_and_resolve_lora(self, request: Any) -> None:
        if request.lora_path != "a":
            raise ValueError("never loaded")
        request.lora_id = "id of a"
        self.held.append(request.lora_id)

    async def release(self, adapter: str) -> None:
        self.held.remove(adapter)


def admitted(manager: Manager, link: StubLink, name: str) -> Any:
    return admitted_adapter(manager, path_of(link).exchange, name, RequestOptions(), None)


async def test_an_adapter_is_held_as_long_as_its_call_is_admitted() -> None:
    manager, link = Manager(), StubLink()
    async with admitted(manager, link, "a") as adapter:
        assert (adapter, manager.held, link.admitted) == ("id of a", ["id of a"], 1)
    assert (manager.held, link.admitted) == ([], 0)


async def test_a_call_that_waits_for_its_admission_holds_no_adapter() -> None:
    """SGLang unloads adapters in a pause, too."""
    manager, link = Manager(), StubLink()
    link.is_open.clear()
    waiting = asyncio.ensure_future(admitted(manager, link, "a").__aenter__())
    await asyncio.sleep(0)
    assert manager.held == []
    link.is_open.set()
    assert await waiting == "id of a"


async def test_a_call_without_an_adapter_is_admitted_later() -> None:
    manager, link = Manager(), StubLink()
    async with admitted(manager, link, "") as adapter:
        assert (adapter, manager.held, link.admitted) == ("", [], 0)


async def test_sglang_refuses_an_unknown_adapter() -> None:
    manager, link = Manager(), StubLink()
    with pytest.raises(RequestError, match="never loaded") as refused:
        async with admitted(manager, link, "b"):
            raise AssertionError("it was admitted")
    assert refused.value.field == "adapter"
    assert (manager.held, link.admitted) == ([], 0)


async def test_the_error_of_a_call_is_not_taken_for_that_of_its_adapter() -> None:
    manager, link = Manager(), StubLink()
    with pytest.raises(ValueError, match="of the call"):
        async with admitted(manager, link, "a"):
            raise ValueError("of the call")
    assert (manager.held, link.admitted) == ([], 0)
