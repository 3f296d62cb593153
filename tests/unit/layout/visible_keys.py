"""The keys that each token of a forward sees, by definition."""

from __future__ import annotations

from sglang_prefill_ext.layout.tokens import ForwardLayout

Key = tuple[int, int]
"""(-1, token of the forward) or (group, held token)."""


def held_keys(forward: ForwardLayout) -> list[Key]:
    return [(i, token) for i, span in enumerate(forward.groups) for token in range(span.held)]


def keys_seen(forward: ForwardLayout) -> list[list[Key]]:
    """Of each token, in the order of their positions."""
    seen: list[list[Key]] = []
    for index, span in enumerate(forward.groups):
        prefix: list[Key] = [(index, token) for token in range(span.held)]
        for segment, length in enumerate([span.fresh, *span.suffix_lens.tolist()]):
            own: list[Key] = [(-1, len(seen) + i) for i in range(length)]
            stops = range(1, length + 1) if forward.causal else [length] * length
            seen.extend(prefix + own[:stop] for stop in stops)
            if segment == 0:
                prefix = prefix + own
    return seen
