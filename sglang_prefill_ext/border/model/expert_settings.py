"""What layers of experts look up while a packed forward runs."""

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
    """What surrounds each packed forward of a model; of most models nothing has to be set.

    Shared experts are those of this model. Where tokens are routed is not recorded: with
    ``--enable-return-routed-experts`` SGLang does so for requests that ask for it, in a buffer that
    is as long as a stock batch can be, and is read after the next forward has been launched.
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
