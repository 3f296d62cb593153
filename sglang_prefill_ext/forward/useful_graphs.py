"""Capture as many graphs as save time, and as there is memory for."""

from __future__ import annotations

from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.graphs.plan import sizes_up_to

GRAPH_SHARE = 0.25
"""Most of the free memory for graphs, unless their size is asked for."""

FEWER_TOKENS = 4096
"""Tokens of the largest graph if larger ones cannot be captured."""


def capture_useful(
    executor: PackedExecutor, most_tokens: int, hidden_tokens: int, free_tokens: float
) -> None:
    """Capture graphs of those forwards that take the host longer to launch than the device to run.

    Larger ones would only be padded.

    Args:
        most_tokens: of the largest graph, >= 1.
        hidden_tokens: computed by the device while the host launches an eager forward.
        free_tokens: for which a forward would take all the free memory. Graphs keep about as much
            as their largest forward takes, and may keep `GRAPH_SHARE`.
    """
    tokens = useful_tokens(most_tokens, hidden_tokens, GRAPH_SHARE * free_tokens)
    executor.capture_graphs(tokens)
    if executor.graph_use.obstacle and tokens > FEWER_TOKENS:
        executor.forget_graphs()
        executor.capture_graphs(FEWER_TOKENS)


def useful_tokens(most_tokens: int, hidden_tokens: int, affordable: float) -> int:
    """Tokens of the largest graph that saves time.

    Args:
        affordable: most tokens for which there is memory; the smallest graph needs none.
    """
    sizes = sizes_up_to(most_tokens)
    enough = next((tokens for tokens in sizes if tokens >= hidden_tokens), most_tokens)
    return max(tokens for tokens in sizes if tokens <= max(min(enough, affordable), sizes[0]))
