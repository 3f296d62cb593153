"""Types of numbers in JSON bodies."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What orjson, with which SGLang reads bodies, takes for an integer."""
