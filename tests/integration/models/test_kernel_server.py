"""A live server whose packed forwards run on the Triton kernels, here in the interpreter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.integration.support.client import Client, score_body
from tests.integration.support.own_server import serving
from tests.integration.support.parity import assert_paths_agree, assert_tokens_agree

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

FLAGS = (
    "--enable-prefill-only",
    "--prefill-only-max-forward-tokens=128",  # one such forward is measured at start
    "--prefill-only-cuda-graphs=64",  # without CUDA run again, padded and on static buffers
)
INTERPRETED = {"TRITON_INTERPRET": "1"}


@pytest.fixture(scope="module", params=["fused", "merge"])
def kernel_client(
    model_dir: Callable[[str], Path], request: pytest.FixtureRequest
) -> Iterator[Client]:
    flags = (*FLAGS, f"--prefill-only-attention={request.param}")
    name = f"kernels-{request.param}"
    with serving(model_dir("micro"), name, *flags, env=INTERPRETED) as (_, client):
        yield client


@contextmanager
def graph_forwards(client: Client) -> Iterator[Counter[str]]:
    """Fill the yielded counter, on leaving, with forwards by graph or reason."""
    moved: Counter[str] = Counter()
    before = Counter(client.scheduler()["graphs"]["forwards"])
    yield moved
    moved.update(Counter(client.scheduler()["graphs"]["forwards"]) - before)


def test_graphs_are_captured_at_start(kernel_client: Client) -> None:
    graphs = kernel_client.scheduler()["graphs"]
    assert graphs["sizes"] == [16, 24, 32, 48, 64]
    assert graphs["obstacle"] == ""
    assert graphs["seconds"] > 0


def test_same_numbers_on_a_fresh_and_on_a_cached_prefix(kernel_client: Client) -> None:
    body = score_body(81, 40, [3, 1, 6])
    with kernel_client.counting() as moved, graph_forwards(kernel_client) as forwards:
        for _ in range(2):  # the stock path leaves the prefix in the cache
            assert_paths_agree(kernel_client, body)
    assert moved["scheduler.tokens_cached"] >= 40
    assert forwards == {"graph": 2}


def test_the_same_request_is_replayed_each_time_whatever_of_it_is_cached(
    kernel_client: Client,
) -> None:
    """The prefix is computed, then stored when it comes a second time, then read from the pool."""
    body = score_body(85, 48, [3, 1, 6])
    with kernel_client.counting() as moved, graph_forwards(kernel_client) as forwards:
        packed = [kernel_client.score(body) for _ in range(4)]
    assert forwards == {"graph": 4}
    assert moved["scheduler.tokens_cached"] == 2 * 48
    for answer in packed:
        np.testing.assert_allclose(answer["scores"], packed[0]["scores"], rtol=0, atol=1e-5)
    assert_paths_agree(kernel_client, body)


def test_replays_of_every_size(kernel_client: Client) -> None:
    """Large and small requests take turns, so that left-over data of one would show in the next."""
    shapes = [(0, [7, 2]), (30, [20, 14]), (9, [1] * 8), (20, [2, 1, 5]), (0, [1, 40, 4])]
    with graph_forwards(kernel_client) as forwards:
        for number, (prefix, suffixes) in enumerate(shapes):
            assert_paths_agree(kernel_client, score_body(90 + number, prefix, suffixes))
    assert forwards == {"graph": len(shapes)}


def test_large_forwards_and_those_that_read_much_run_eagerly(kernel_client: Client) -> None:
    with graph_forwards(kernel_client) as forwards:
        assert_paths_agree(kernel_client, score_body(82, 30, [20, 30]))
        assert_paths_agree(kernel_client, score_body(83, 60, [40, 45]))
        assert_tokens_agree(kernel_client, 84)
    assert forwards["too_large"] == 2
    assert forwards["graph"] >= 1, "the last forward of a divided request, whose prefix is held"
    assert forwards["many_reads"] >= 1
