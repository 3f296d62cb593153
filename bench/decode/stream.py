"""Read what clients received of streamed generations, after the measurement (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import h11
import numpy as np

from bench.http_client import LoadError, Piece

_EVENT_END = b"\n\n"
_FIELD = b"data: "
_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Generation:
    """One streamed answer.

    Attributes:
        number: number of the prompt.
        event_s: times at which events with new tokens came, ascending, in seconds.
        event_tokens: number of new tokens of each event; several if the server sent late.
        output_ids: all generated tokens.
    """

    number: int
    event_s: list[float]
    event_tokens: list[int]
    output_ids: list[int]

    @classmethod
    def from_pieces(cls, number: int, pieces: Sequence[Piece]) -> Generation:
        """Read the answer of ``POST /generate``, where each event repeats all tokens so far.

        Raises:
            LoadError: the server sent an error instead, or no tokens.
        """
        event_s, totals = [], [0]
        output_ids: list[int] = []
        for second, event in _events(pieces):
            if event == _DONE:
                break
            fields = json.loads(event)
            if "output_ids" not in fields:
                raise LoadError(f"generation failed: {event.decode()}")
            output_ids = fields["output_ids"]
            if len(output_ids) > totals[-1]:
                event_s.append(second)
                totals.append(len(output_ids))
        if not output_ids:
            raise LoadError("a generation ended without tokens")
        return cls(number, event_s, np.diff(totals).tolist(), output_ids)


def _events(pieces: Sequence[Piece]) -> Iterator[tuple[float, bytes]]:
    """Split an answer into server-sent events, each with the time at which it was complete."""
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method="GET", target="/", headers=[("host", "127.0.0.1")]))
    parser.send(h11.EndOfMessage())
    text = b""
    for second, data in pieces:
        parser.receive_data(data)
        while isinstance(part := parser.next_event(), h11.Response | h11.Data):
            if isinstance(part, h11.Data):
                text += part.data
        *events, text = text.split(_EVENT_END)
        yield from ((second, event.removeprefix(_FIELD)) for event in events)


@dataclass(frozen=True, slots=True)
class DecodeFigures:
    """Figures of the generations of all clients within a window of time.

    Attributes:
        tokens_per_s: tokens per second that came in the window.
        ms_per_token: mean time per output token of a client after its first token.
        gap_p50_ms, gap_p99_ms: time between two events of one generation.
    """

    tokens_per_s: float
    ms_per_token: float
    gap_p50_ms: float
    gap_p99_ms: float


def decode_figures(
    generations: Sequence[Generation], begin_s: float, end_s: float
) -> DecodeFigures:
    """Compute the figures of the window from `begin_s` (included) to `end_s` (excluded).

    Raises:
        LoadError: no gap between two events ended within the window.
    """
    gaps_s: list[float] = []
    tokens = tokens_after_first = 0
    for each in generations:
        times = np.array(each.event_s)
        inside = (times >= begin_s) & (times < end_s)
        counts = np.array(each.event_tokens)
        tokens += int(counts[inside].sum())
        tokens_after_first += int(counts[1:][inside[1:]].sum())
        gaps_s += np.diff(times)[inside[1:]].tolist()
    if not gaps_s:
        raise LoadError("no token came in the measured time; measure for longer")
    p50, p99 = np.percentile(gaps_s, [50, 99]) * 1e3
    return DecodeFigures(
        tokens_per_s=tokens / (end_s - begin_s),
        ms_per_token=sum(gaps_s) * 1e3 / tokens_after_first,
        gap_p50_ms=float(p50),
        gap_p99_ms=float(p99),
    )
