"""Load by tools that are not Python: wrk for HTTP, h2load for gRPC."""
