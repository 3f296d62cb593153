"""A live server whose packed forwards run on the Triton kernels, here in the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.client import Client, score_body
from tests.integration.own_server import serving
from tests.integration.parity import assert_paths_agree

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

FLAGS = (
    "--enable-prefill-only",
    "--prefill-only-prefix-caching=always",
    "--prefill-only-max-forward-tokens=128",  # one such forward is measured at start
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


def test_same_numbers_on_a_fresh_and_on_a_cached_prefix(kernel_client: Client) -> None:
    body = score_body(81, 40, [3, 1, 6])
    with kernel_client.counting() as moved:
        for _ in range(2):
            assert_paths_agree(kernel_client, body)
    assert moved["scheduler.tokens_cached"] >= 40


def test_several_forwards_of_one_request(kernel_client: Client) -> None:
    assert_paths_agree(kernel_client, score_body(82, 0, [7, 2]))
