"""A mixture of experts on a live server; without a GPU its experts are computed without blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.integration.support.client import Client, score_body
from tests.integration.support.own_server import serving
from tests.integration.support.parity import TOLERANCE

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def mixture(model_dir: Callable[[str], Path]) -> Iterator[Client]:
    flags = ("--enable-prefill-only", "--prefill-only-moe", "least-time")
    flags += ("--prefill-only-moe-source", "device", "--enable-metrics")
    with serving(model_dir("qwen3-moe"), "experts", *flags) as (_, client):
        yield client


@pytest.mark.patch("P61")
@pytest.mark.patch("P62")
@pytest.mark.patch("P63")
def test_the_server_says_why_sglangs_choice_stays(mixture: Client) -> None:
    scheduler = mixture.scheduler()
    assert scheduler["experts"] == {
        "policy": "stock",
        "source": "",
        "reason": "experts on cpu are computed without blocks",
        "layers": [],
        "deep_gemm": {"reason": "SGLang runs without DeepGEMM here", "chosen": {}},
    }
    hooks = [each for each in scheduler["patches"] if each["id"] in ("P61", "P62", "P63")]
    assert [(each["applied"], each["drift"]) for each in hooks] == [(True, False)] * 3
    assert "prefill_only_expert" not in mixture.http.get("/metrics").text.replace("# HELP", "")


def test_both_paths_give_the_same_scores(mixture: Client) -> None:
    body = score_body(61, 80, [9, 1, 30])
    with mixture.counting() as moved:
        packed = mixture.score(body)
    assert moved["frontend.requests.packed"] == 1
    stock = mixture.score(body, stock=True)
    np.testing.assert_allclose(packed["scores"], stock["scores"], rtol=TOLERANCE, atol=TOLERANCE)
