"""SGLang's own wrappers, the one way by which our hooks get onto its functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookType, _wrap_fn

from sglang_prefill_ext.patching.reach import unbound
from sglang_prefill_ext.patching.spec import Kind


def wrapped(raw: object, hook: Callable[..., Any], kind: Kind) -> object:
    """What takes the place of an attribute of a class or module: it, wrapped with `hook`.

    The public pair `register` and `apply_hooks` would lose hooks: `apply_hooks` applies a
    target only once, so that calling it here would drop every hook on the same target that a
    plugin loaded later registers (the gRPC plugin that SGLang depends on also adds flags to
    `ServerArgs.add_cli_args`), and it only logs a failure. It also looks for every target through
    all modules anew, which takes a second for all of ours. `_wrap_fn` is what it calls in the end.
    """
    wrapper = _wrap_fn(unbound(raw), hook, HookType(kind.value))
    return type(raw)(wrapper) if isinstance(raw, classmethod | staticmethod) else wrapper
