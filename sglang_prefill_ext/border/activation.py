"""Carry the configuration to every process of a server and apply the patches there.

The configuration travels on `ServerArgs` as an underscore attribute, which SGLang pickles to
its children but never interprets. SGLang does not load plugins in every child (extra tokenizer
workers, attached engines), so unpickling the attribute does it.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from sglang.srt.plugins import load_plugins

from sglang_prefill_ext.border import patches
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import UnsupportedSGLangError
from sglang_prefill_ext.patching.spec import Group
from sglang_prefill_ext.process.quit_signal import leave_quit_signal
from sglang_prefill_ext.process.stages import STARTUP

logger = logging.getLogger(__name__)

ATTRIBUTE = "_prefill_only"

# A process needs the patches of a group if it has imported this module.
_HOME_MODULES = {
    Group.FRONTEND: "sglang.srt.managers.tokenizer_manager",
    Group.SCHEDULER: "sglang.srt.managers.scheduler",
    Group.DETOKENIZER: "sglang.srt.managers.detokenizer_manager",
    Group.DP_CONTROLLER: "sglang.srt.managers.data_parallel_controller",
}


class _Carrier:
    """Holds the configuration on `ServerArgs`; unpickling it activates the patches."""

    def __init__(self, config: PrefillOnlyConfig) -> None:
        self.config = config

    def __reduce__(self) -> tuple[Any, tuple[PrefillOnlyConfig]]:
        return _arrive_in_child, (self.config,)


def _arrive_in_child(config: PrefillOnlyConfig) -> _Carrier:
    STARTUP.mark("imports")
    load_plugins()
    # A child imports the module of its role before its arguments are unpickled; importing
    # the other roles' modules only to patch them would cost seconds of start-up.
    _apply_or_exit(tuple(g for g, home in _HOME_MODULES.items() if home in sys.modules))
    return _Carrier(config)


def apply_flags() -> None:
    """Add the flags. A mismatch only warns, as prefill-only serving was not asked for yet."""
    try:
        patches.apply((Group.FLAGS,))
    except UnsupportedSGLangError as error:
        logger.warning("--enable-prefill-only is not available on this SGLang.\n%s", error)


def attach(server_args: Any, config: PrefillOnlyConfig) -> None:
    """Put the configuration on `server_args` and patch the launching process.

    Raises:
        SystemExit: the installed SGLang differs from the patch table.
    """
    STARTUP.mark("imports")
    _apply_or_exit(tuple(_HOME_MODULES))
    leave_quit_signal()
    setattr(server_args, ATTRIBUTE, _Carrier(config))


def config_of(server_args: Any) -> PrefillOnlyConfig | None:
    """Return the configuration that `server_args` carries; None if the flag is off."""
    carrier = getattr(server_args, ATTRIBUTE, None)
    return None if carrier is None else carrier.config


def _apply_or_exit(groups: tuple[Group, ...]) -> None:
    if Group.SCHEDULER in groups and is_on_our_platform():
        groups = (*groups, Group.CPU)
    try:
        patches.apply(groups)
        STARTUP.mark("patches")
    except UnsupportedSGLangError as error:
        # SystemExit, because SGLang logs any other plugin error and serves unpatched.
        raise SystemExit(f"--enable-prefill-only cannot be honoured.\n{error}") from error


def is_on_our_platform() -> bool:
    """Whether SGLang found no device of its own, and runs on the CPU platform of this package."""
    # Imported here, so that with the flag off the plugin does not trigger platform discovery.
    from sglang.srt.platforms import current_platform

    from sglang_prefill_ext.border.cpu.cpu_platform import CpuReferencePlatform

    return isinstance(current_platform, CpuReferencePlatform)
