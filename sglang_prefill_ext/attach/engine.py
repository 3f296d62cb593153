"""The engine as calls from other processes need it, and how rows from there are served."""

from __future__ import annotations

import logging
import math
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Protocol

from sglang_prefill_ext.attach.messages import Beat, Facts, Stock, StockAnswer, StockError
from sglang_prefill_ext.errors import PackingError, PrefillExtError
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows, rows_from_bytes
from sglang_prefill_ext.wire.status import Status, end_by

logger = logging.getLogger(__name__)


class Engine(Protocol):
    """What calls from other processes need of the engine's process.

    Attributes:
        leaving: it has been told to end, and does so once no call is under way.
        timeout_ms: of rows that came without a deadline; 0 for none.
    """

    @property
    def leaving(self) -> bool: ...

    @property
    def timeout_ms(self) -> int: ...

    def facts(self) -> Facts: ...

    def adapter(self, name: str, options: RequestOptions) -> AbstractAsyncContextManager[str]:
        """Yield the id of a LoRA adapter, which is not unloaded meanwhile; empty for an empty name.

        Rows with an adapter are admitted before it is acquired, as SGLang unloads adapters in a
        pause, too, and waits until no request has them.

        Raises:
            RequestError: there is no adapter of that name.
            DeadlineExceededError: the deadline passed before the rows were admitted.
        """
        ...

    async def serve_stock(self, call: Stock) -> StockAnswer | StockError:
        """Serve a call as if it had come by HTTP; errors that a caller can cause are returned."""
        ...

    async def serve_rows(self, rows: PackedRows, options: RequestOptions) -> PackedResult:
        """Serve rows like those of this process; admit those that have no adapter.

        Raises:
            DeadlineExceededError: the deadline passed before they were admitted.
        """
        ...

    def count(self, beat: Beat) -> None: ...


async def result_of(engine: Engine, row_bytes: bytes, options: RequestOptions) -> PackedResult:
    """Serve rows whose adapter is a name; errors become a result, too."""
    try:
        if options.deadline_ms is not None and not math.isfinite(options.deadline_ms):
            # A deadline of NaN would break the order of the queue.
            raise PackingError(f"a deadline cannot be {options.deadline_ms}")
        options = options.within(engine.timeout_ms)
        rows = rows_from_bytes(row_bytes)
        async with engine.adapter(rows.adapter, options) as adapter:
            if adapter:
                rows = replace(rows, adapter=adapter)
            return await engine.serve_rows(rows, options)
    except PrefillExtError as error:
        result = PackedResult(end_by(error).status, str(error))
        if result.status is Status.FAILED:
            logger.warning("Rows of a front end cannot be served: %s", error)
        return result
    except Exception as error:
        logger.exception("A packed request of a front end failed")
        return PackedResult(Status.FAILED, f"{type(error).__name__}: {error}")
