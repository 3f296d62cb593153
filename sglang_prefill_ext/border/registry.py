"""SGLang's own hook registry, the one way by which our hooks get onto its functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

from sglang_prefill_ext.patching.spec import Kind

_SOURCE = HookSource(plugin_name="prefill_only", dist_name="sglang-prefill-ext")


def wrap(target: str, hook: Callable[..., Any], kind: Kind) -> None:
    """Wrap `target` with `hook` now, on top of whatever other plugins put there.

    The public pair `register` and `apply_hooks` would lose hooks: `apply_hooks` applies a
    target only once, so that calling it here would drop every hook on the same target that a
    plugin loaded later registers (the gRPC plugin that SGLang depends on also adds flags to
    `ServerArgs.add_cli_args`), and it only logs a failure. `_apply_target` is what it calls
    for each target; it raises, and leaves other plugins' bookkeeping alone.

    Raises:
        Exception: the registry refuses the target, such as a class.
    """
    HookRegistry._apply_target(target, [(HookType(kind.value), hook, _SOURCE)])
