"""A fleet on Ray: Serve starts, watches, scales and replaces engines and routers.

Requests go by HTTP, not through Ray. Only this folder imports Ray, and only
`sglang-prefill fleet --model-path` imports this folder.
"""
