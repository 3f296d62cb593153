from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.http_client import LoadError
from bench.load_generators import h2load

METHOD = "/package.Service/Method"
PROGRAM = """
import json, sys
options = dict(each.lstrip('-').split('=', 1) for each in sys.argv[1:] if '=' in each)
assert 'warm-up-time' not in options, 'h2load does not log what it sends meanwhile'
body = open(options['data'], 'rb').read()
lines = json.load(open(LOGS))[body[5:].decode()]
open(options['log-file'], 'w').write(''.join('\\t'.join(map(str, row)) + '\\n' for row in lines))
"""


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a stand-in for h2load logs for each message, as JSON."""
    file = tmp_path / "logs"
    tool = tmp_path / "h2load"
    tool.write_text(f"#!{sys.executable}\n" + PROGRAM.replace("LOGS", repr(str(file))))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return file


def test_a_message_is_framed_as_grpc_wants_it() -> None:
    assert h2load.framed(b"abc") == b"\x00\x00\x00\x00\x03abc"
    assert h2load.framed(bytes(300))[:5] == b"\x00\x00\x00\x01\x2c"


def test_what_all_clients_saw_at_the_same_time_counts(logs: Path) -> None:
    a = [[1_000_000, 200, 500], [1_000_600, 200, 400], [1_001_100, 200, 9_000]]
    b = [[1_000_500, 200, 700], [1_001_300, 200, 800]]
    logs.write_text(f'{{"a": {a}, "b": {b}, "c": []}}')
    seen = h2load.closed_loop(1, METHOD, [b"a", b"b", b"c"], clients=2, seconds=1)
    # From the second client's first call to its last answer.
    assert sorted(seen.latencies_s) == [0.0004, 0.0007, 0.0008]
    assert (seen.sent, seen.seconds) == (5, 0.0016)


@pytest.mark.parametrize(
    ("of_a", "of_b", "words"),
    [
        ([[1, 200, 5]], [], "no answer"),
        ([[1, 200, 5]], [[1, 503, 5]], "status.*503"),
        ([[1, 200, 5]], [[1, -1, 5]], "status.*-1"),
        ([[1, 200, 5]], [[100, 200, 5]], "never at work at the same time"),
    ],
)
def test_a_run_that_shows_nothing_is_an_error(
    logs: Path, of_a: list[list[int]], of_b: list[list[int]], words: str
) -> None:
    logs.write_text(f'{{"a": {of_a}, "b": {of_b}}}')
    with pytest.raises(LoadError, match=words):
        h2load.closed_loop(1, METHOD, [b"a", b"b"], clients=2, seconds=1)
