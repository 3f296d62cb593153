"""Our messages on SGLang's ZMQ sockets.

They are subclasses of SGLang's `BaseReq`, so that routing, broadcasting to tensor-parallel ranks
and both serialisations (pickle, msgpack) work as for stock messages. Structs are encoded by
position: append fields, never insert or reorder.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sglang.srt.managers.io_struct import BaseReq, FreezeGCReq, hook_custom_types

from sglang_prefill_ext.process.collector import GcAction, GcReport
from sglang_prefill_ext.wire.packed import PackedResult, head_of


class PackedRowsReq(BaseReq, kw_only=True):  # type: ignore[misc, call-arg]
    """Frontend to scheduler: all rows of one request, and its `RequestOptions`.

    They are pickled field by field, which takes half the time of an object in the message.
    """

    row_bytes: bytes
    priority: int = 0
    deadline_ms: float | None = None
    keep_prefix: bool = False

    # The data-parallel controller reads these two when it chooses a replica.

    @property
    def routed_dp_rank(self) -> int | None:
        return None

    @property
    def input_ids(self) -> Any:
        return head_of(self.row_bytes)[0]


class PackedRowsResults(BaseReq, kw_only=True):  # type: ignore[misc, call-arg]
    """Scheduler to frontend: request id -> result, for requests that ended together."""

    results: dict[str, PackedResult] = msgspec.field(default_factory=dict)


class PackedExpireReq(BaseReq, kw_only=True):  # type: ignore[misc, call-arg]
    """First rank to all ranks: end the requests that are late (see `PackedRuntime.expire`)."""

    now_ms: float = 0.0
    tokens_per_s: float = 0.0


class PackedAbortReq(BaseReq, kw_only=True):  # type: ignore[misc, call-arg]
    """Scheduler to every tokenizer worker: SGLang was asked to abort requests by their names.

    It aborts those whose names begin with `rid`.
    """


class PackedStatusReq(BaseReq, kw_only=True):  # type: ignore[misc, call-arg]
    """Frontend to every scheduler: asks for the status of its packed path."""


class PackedStatusResult(BaseReq, kw_only=True):  # type: ignore[misc, call-arg]
    """Scheduler to frontend: one replica's status, as JSON."""

    payload: bytes = b""


class GcReq(FreezeGCReq, kw_only=True):  # type: ignore[misc, call-arg]
    """Visits all processes; each one acts, adds its report and passes it on.

    It is a subclass of `FreezeGCReq`, because SGLang sends those to every detokenizer.
    """

    action: GcAction = GcAction.STATS
    reports: list[GcReport] = msgspec.field(default_factory=list)


hook_custom_types(
    PackedRowsReq,
    PackedRowsResults,
    PackedAbortReq,
    PackedStatusReq,
    PackedStatusResult,
    GcReq,
)
