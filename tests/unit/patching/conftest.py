"""Fixtures that put a stand-in for SGLang in its place, with SGLang's real hook registry."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sglang_prefill_ext.border import patches
from sglang_prefill_ext.patching import guard
from tests.unit.patching.stub_sglang import MODULE, UPSTREAM


def load_module(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load the file under `name`, also into `sys.modules` until the test ends."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def load_upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Load a text as the module `sglang.managers`."""
    package = ModuleType("sglang")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "sglang", package)

    def load(text: str) -> ModuleType:
        path = tmp_path / "managers.py"
        path.write_text(text)
        return load_module(MODULE, path, monkeypatch)

    return load


@pytest.fixture
def upstream(load_upstream: Callable[[str], ModuleType]) -> ModuleType:
    return load_upstream(UPSTREAM)


@pytest.fixture
def registry(upstream: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """SGLang's `HookRegistry`, empty; our engine uses this one for the test.

    Its file imports nothing of SGLang, so it is loaded alone: importing the package would take
    half a minute.
    """
    distribution = importlib.metadata.distribution("sglang")
    path = Path(str(distribution.locate_file("sglang/srt/plugins/hook_registry.py")))
    for parent in ("sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    module = load_module("sglang.srt.plugins.hook_registry", path, monkeypatch)
    monkeypatch.setattr(patches, "_applied", {})
    monkeypatch.setattr(guard, "installed_version", lambda: "0.5.23")
    return module.HookRegistry
