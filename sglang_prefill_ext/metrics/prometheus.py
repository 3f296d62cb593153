"""Makes metrics of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def new_metric(kind: str, name: str, text: str, labels: Iterable[str], **settings: Any) -> Any:
    """Make a metric of the class `kind` of prometheus_client.

    prometheus_client is imported late: with several front ends it must see the directory that
    SGLang sets up for sharing counters between processes.
    """
    import prometheus_client

    made = getattr(prometheus_client, kind)
    return made(f"sglang:prefill_only_{name}", text, tuple(labels), **settings)
