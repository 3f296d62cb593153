from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.decode.stream import Generation, decode_figures
from bench.http_client import LoadError, Piece

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n"


def chunk(text: bytes) -> bytes:
    return f"{len(text):x}\r\n".encode() + text + b"\r\n"


def event(fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def answer(*totals: Sequence[int]) -> list[bytes]:
    """One chunk per event, each with all tokens so far."""
    events = [chunk(event({"output_ids": list(ids)})) for ids in totals]
    return [HEAD, *events, chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"]


def timed(parts: Sequence[bytes]) -> list[Piece]:
    return [(float(number), part) for number, part in enumerate(parts)]


def test_events_are_timed_and_counted() -> None:
    seen = Generation.from_pieces(7, timed(answer([4], [4, 5], [4, 5], [4, 5, 6, 7])))
    assert seen == Generation(7, [1.0, 2.0, 4.0], [1, 1, 2], [4, 5, 6, 7])


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.integers(1, 40))
def test_an_event_counts_when_it_is_complete(counts: list[int], piece_bytes: int) -> None:
    ids = list(range(sum(counts)))
    totals = [ids[: sum(counts[: n + 1])] for n in range(len(counts))]
    whole = b"".join(answer(*totals))
    parts = [whole[at : at + piece_bytes] for at in range(0, len(whole), piece_bytes)]
    seen = Generation.from_pieces(0, timed(parts))
    assert (seen.event_tokens, seen.output_ids) == (counts, ids)
    for second, total in zip(seen.event_s, totals, strict=True):
        ends = whole.index(event({"output_ids": total})) + len(event({"output_ids": total}))
        assert second == (ends - 1) // piece_bytes


def test_an_error_within_a_stream_is_raised() -> None:
    failed = [HEAD, chunk(event({"error": {"message": "too long"}})), b"0\r\n\r\n"]
    with pytest.raises(LoadError, match=r"generation failed: .*too long"):
        Generation.from_pieces(0, timed(failed))


def test_a_stream_without_tokens_is_an_error() -> None:
    with pytest.raises(LoadError, match="without tokens"):
        Generation.from_pieces(0, timed(answer()))


def test_figures_count_what_came_within_the_window() -> None:
    one = Generation(0, [0.5, 1.0, 1.5, 2.5], [1, 2, 1, 1], [1] * 5)
    other = Generation(1, [1.2, 1.3, 3.0], [1, 1, 1], [1] * 3)
    seen = decode_figures([one, other], begin_s=1.0, end_s=2.0)
    assert seen.tokens_per_s == 2 + 1 + 1 + 1
    # 1.1 s of gaps for 2 + 1 + 1 tokens.
    assert seen.ms_per_token == pytest.approx(1.1e3 / 4)
    # Ended within the window: 0.5 s and 0.5 s of the first, 0.1 s of the other.
    assert seen.gap_p50_ms == pytest.approx(500.0)
    assert seen.gap_p99_ms == pytest.approx(500.0)


@given(st.integers(2, 30), st.floats(0.001, 0.1), st.integers(1, 4))
def test_even_tokens_have_even_gaps(tokens: int, gap_s: float, clients: int) -> None:
    times = [gap_s * (n + 0.5) for n in range(tokens)]
    each = Generation(0, times, [1] * tokens, [1] * tokens)
    seen = decode_figures([each] * clients, 0.0, gap_s * tokens)
    assert seen.tokens_per_s == pytest.approx(clients / gap_s)
    assert seen.ms_per_token == pytest.approx(gap_s * 1e3)
    assert seen.gap_p50_ms == pytest.approx(gap_s * 1e3)
    assert seen.gap_p99_ms == pytest.approx(gap_s * 1e3)


def test_a_window_without_tokens_is_an_error() -> None:
    with pytest.raises(LoadError, match="measure for longer"):
        decode_figures([Generation(0, [1.0, 2.0], [1, 1], [1, 2])], 5.0, 6.0)
