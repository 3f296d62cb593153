"""SGLang, imported once, and the stand-in for it that the table of changes is tested with."""

import importlib
import warnings

from tests.unit.patching.conftest import load_upstream, registry, upstream

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about kernels that this machine lacks
    for _part in ("managers.scheduler", "entrypoints.http_server", "models.registry"):
        importlib.import_module(f"sglang.srt.{_part}")

__all__ = ["load_upstream", "registry", "upstream"]
