from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_prefill_ext.border.tokenizer_manager.adapter_lease import acquired_adapter


class Manager:
    """Stands in for SGLang's tokenizer manager and its registry."""

    def __init__(self) -> None:
        self.lora_registry = self
        self.used: list[Any] = []

    async def _validate_and_resolve_lora(self, obj: Any) -> None:
        if "unknown" in obj.lora_path:
            raise ValueError("never loaded")
        many = isinstance(obj.lora_path, list)
        obj.lora_id = ["id"] * len(obj.lora_path) if many else "id"
        self.used.append(obj.lora_id)

    async def release(self, lora_id: Any) -> None:
        await asyncio.sleep(0)
        self.used.remove(lora_id)


def request(path: Any) -> SimpleNamespace:
    return SimpleNamespace(lora_path=path, lora_id=None)


@pytest.mark.parametrize(("path", "found"), [("a", "id"), (["a", "a"], "id"), (None, ""), ("", "")])
async def test_an_adapter_is_in_use_inside(path: Any, found: str) -> None:
    manager = Manager()
    async with acquired_adapter(manager, request(path)) as adapter:
        assert adapter == found
        assert len(manager.used) == bool(path)
    assert manager.used == []


async def test_an_unknown_adapter_is_not_acquired() -> None:
    manager = Manager()
    with pytest.raises(ValueError, match="never loaded"):
        async with acquired_adapter(manager, request("unknown")):
            pass
    assert manager.used == []


async def test_who_leaves_lets_go_of_the_adapter() -> None:
    manager = Manager()

    async def stay() -> None:
        async with acquired_adapter(manager, request("a")):
            await asyncio.Event().wait()

    staying = asyncio.ensure_future(stay())
    await asyncio.sleep(0)
    assert manager.used == ["id"]
    staying.cancel()
    await asyncio.wait([staying])
    assert manager.used == []
