"""Global settings of SGLang that MoE layers read, as packed forwards need them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from sglang.srt.runtime_context import get_model
from sglang.srt.state_capturer.routed_experts import (
    get_global_experts_capturer,
    set_global_experts_capturer,
)


def expert_settings(model: Any) -> Callable[[], AbstractContextManager[object]]:
    """Return a context manager for the packed forwards of a model; for most models it does nothing.

    Within it, two settings differ. SGLang's setting for shared experts is that of this model. And
    the experts of tokens are not recorded: with ``--enable-return-routed-experts`` SGLang records
    them for requests that ask for it, in a buffer that has the length of the longest stock batch,
    and reads it only after the next forward was launched.
    """
    shared = model.shared_experts_config
    if shared == get_model().shared_experts and get_global_experts_capturer() is None:
        return nullcontext

    @contextmanager
    def settings() -> Iterator[None]:
        capturer = get_global_experts_capturer()
        set_global_experts_capturer(None)
        try:
            with get_model().override(shared_experts=shared):
                yield
        finally:
            set_global_experts_capturer(capturer)

    return settings
