"""Check that a hook is in effect on its target, and find what bypasses it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from sglang_prefill_ext.patching.source import names_in, source_of, unbound, underlying


def carries(raw: object, hook: Callable[..., Any]) -> bool:
    """Whether a class attribute is the hook, or is wrapped by it at any depth.

    SGLang's wrappers keep the hook in their closure and the wrapped function in
    ``__wrapped__``. The object itself is more reliable than a list of applied patches.
    """
    value = unbound(raw)
    while value is not None:
        if value is hook:
            return True
        cells = getattr(value, "__closure__", None) or ()
        if any(cell.cell_contents is hook for cell in cells):
            return True
        value = getattr(value, "__wrapped__", None)
    return False


def overrides(owner: type | ModuleType, attribute: str, hook: Callable[..., Any]) -> Iterator[str]:
    """Yield the subclasses whose own attribute bypasses the hook; none if `owner` is a module.

    An override that calls ``super()`` reaches the hook and is left out.
    """
    subclasses: list[type] = owner.__subclasses__() if isinstance(owner, type) else []
    for subclass in subclasses:
        own = vars(subclass).get(attribute)
        reaches = own is None or carries(own, hook)
        if not reaches and f"super().{attribute}" not in names_in(source_of(underlying(own))):
            yield f"{subclass.__module__}.{subclass.__qualname__}"
        yield from overrides(subclass, attribute, hook)


def aliases(originals: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Find where a loaded SGLang module or class still holds an unhooked function.

    Args:
        originals: key -> function or class attribute as it was before its hook was applied.

    Yields:
        The key, and the dotted name of the place.
    """
    keys = {id(unbound(raw)): key for key, raw in originals.items()}
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType) or not module.__name__.startswith("sglang."):
            continue
        for name, value in list(vars(module).items()):
            if key := keys.get(id(value)):
                yield key, f"{module.__name__}.{name}"
            elif isinstance(value, type) and value.__module__ == module.__name__:
                for attribute, raw in list(vars(value).items()):
                    if key := keys.get(id(unbound(raw))):
                        yield key, f"{module.__name__}.{name}.{attribute}"
