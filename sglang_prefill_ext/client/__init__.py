"""A client of a prefill-only server: `PrefillClient`, and `AsyncPrefillClient` for asyncio.

Both speak plain SGLang HTTP, so they also work with a stock server, and gRPC with the front ends of
`sglang-prefill serve-grpc`. Both share pure modules that build requests, read answers and decide
about repeats.
"""

from sglang_prefill_ext.client.answers import Scores
from sglang_prefill_ext.client.arrays import EmbedOverrides
from sglang_prefill_ext.client.clients import AsyncPrefillClient, PrefillClient
from sglang_prefill_ext.client.options import Options, Retries

__all__ = ["AsyncPrefillClient", "EmbedOverrides", "Options", "PrefillClient", "Retries", "Scores"]
