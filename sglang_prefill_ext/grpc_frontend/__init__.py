"""Prefill-only calls over gRPC, served by processes of their own (`prefill.proto`)."""
