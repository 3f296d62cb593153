from __future__ import annotations

import pytest

from bench.load import Measurement
from bench.schedulers import session
from bench.schedulers.session import costs_of


def test_costs_are_divided_by_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Measurement(seconds=1.0, sent=10, generator_cpu_s=0.5)
    cpu = {1: 0.2, 2: 0.6, 3: 1.0, 4: 1.0}
    monkeypatch.setattr(session, "has_accelerator", lambda: False)
    costs = costs_of(seen, cpu, {3, 4}, busy_s=1.5)
    assert costs.device_s == pytest.approx(0.15)
    assert costs.python_s == pytest.approx(0.05)
    assert costs.front_s == pytest.approx(0.06)
    assert costs.cpu_s == pytest.approx(0.33)
    disturbed = costs_of(seen, cpu, {3, 4}, busy_s=9.0)
    assert (disturbed.device_s, disturbed.python_s) == (pytest.approx(0.2), 0.0)
    monkeypatch.setattr(session, "has_accelerator", lambda: True)
    assert costs_of(seen, cpu, {3, 4}, busy_s=1.5).python_s == pytest.approx(0.2)
