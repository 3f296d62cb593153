"""Stands for Mooncake's transfer library, whose wheels want InfiniBand's: it transfers nothing.

SGLang loads it where its prefill server starts, and then only registers its memory with it. The
requests of the tests have no peer: SGLang itself has a sender for such, which it warms up with.
"""

from __future__ import annotations


class TransferEngine:
    """What SGLang calls before the first transfer; 0 means that it went well."""

    def initialize(self, *_address: str) -> int:
        return 0

    def get_rpc_port(self) -> int:
        return 0

    def batch_register_memory(self, _pointers: list[int], _lengths: list[int]) -> int:
        return 0
