from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from uvicorn import Config
from uvicorn.supervisors import multiprocess

from sglang_prefill_ext.process.quit_signal import leave_quit_signal


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep uvicorn's list and the handlers of this process as they are."""
    monkeypatch.setattr(multiprocess, "SIGNALS", dict(multiprocess.SIGNALS))
    before = {number: signal.getsignal(number) for number in multiprocess.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_a_supervisor_of_workers_leaves_sigquit_to_the_handler_that_is_there() -> None:
    def end(*_signal: object) -> None:
        pass

    signal.signal(signal.SIGQUIT, end)
    signal.signal(signal.SIGTERM, end)
    leave_quit_signal()
    multiprocess.Multiprocess(Config("app", workers=2), sockets=[])
    assert signal.getsignal(signal.SIGQUIT) is end
    assert signal.getsignal(signal.SIGTERM) is not end
