"""Prefill-only serving for stock SGLang: one packed forward per scoring request.

Importing this package is free of side effects and of heavy imports: SGLang loads
`sglang_prefill_ext.plugin` through its entry point and everything else follows from there.
"""

__version__ = "0.1.0"

SUPPORTED_SGLANG = ">=0.5.23,<0.5.24"
"""PEP 440 specifier of the SGLang releases whose hooked functions were verified."""
