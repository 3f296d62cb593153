"""What the packed path needs of the process it lives in: a way to the scheduler, and token ids."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.wire.arrays import FlatRows, Int32Array
from sglang_prefill_ext.wire.packed import PackedRows


class SchedulerLink(Protocol):
    """Sends packed requests to the scheduler, and encodes texts as the stock path does."""

    def admission(self, request: Any = None) -> AbstractAsyncContextManager[object]:
        """Wait while the engine is paused; hold off weight updates while inside.

        Args:
            request: of the client, see `while_connected`.

        Raises:
            RequestAbortedError: upon entry; the client left during the pause.
        """

    def send(self, rid: str, rows: PackedRows, options: RequestOptions) -> None: ...

    def abort(self, rid: str) -> None: ...

    def encode(
        self, texts: Sequence[str | tuple[str, str]], *, continued: bool = False
    ) -> list[list[int]]:
        """Encode all texts, or all pairs of texts, as the stock path would encode each.

        Args:
            continued: other tokens come before, so no special tokens are added.
        """

    def encode_joined(
        self, shared: str, items: Sequence[str], *, item_first: bool
    ) -> tuple[Int32Array, FlatRows]:
        """Encode ``shared + item`` of every item, or ``item + shared``, as the stock path would.

        Returns:
            Ids with which all prompts begin (end, if `item_first`), maybe none, and the rest of
            every prompt.
        """

    def longest_prompt(self) -> int:
        """Most tokens of a prompt that the stock path accepts."""

    @property
    def longest_packed(self) -> int:
        """Most tokens of a prompt that packed forwards take, if the stock path accepts it."""
