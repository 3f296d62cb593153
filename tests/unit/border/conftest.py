"""The stand-in for SGLang that the table of changes is tested with."""

from tests.unit.patching.conftest import load_upstream, registry, upstream

__all__ = ["load_upstream", "registry", "upstream"]
