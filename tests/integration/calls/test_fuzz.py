"""Random bodies, right and wrong, are answered alike by both paths of the shared server.

Other models have such tests beside their other tests.
"""

from __future__ import annotations

import pytest

from tests.integration.support.client import Client
from tests.integration.support.fuzz_bodies import GENERATION
from tests.integration.support.fuzz_paths import EXAMPLES, fuzz

pytestmark = [pytest.mark.server, pytest.mark.timeout(900 + EXAMPLES)]


@pytest.mark.parametrize("path", GENERATION)
def test_both_paths_answer_alike(client: Client, path: str) -> None:
    fuzz(client, path, GENERATION[path])
