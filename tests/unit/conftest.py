from __future__ import annotations

from collections.abc import Iterator

import pytest

from sglang_prefill_ext.scheduling import failures, runtime


@pytest.fixture(scope="module")
def no_log() -> Iterator[None]:
    """Log records of failures would keep tracebacks, and with them K/V, alive."""
    failures.logger.disabled = runtime.logger.disabled = True
    yield
    failures.logger.disabled = runtime.logger.disabled = False
