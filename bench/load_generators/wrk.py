"""Closed and open loops over HTTP by wrk."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.http_client import LoadError
from bench.load import Measurement
from bench.load_generators.tools import counting_cpu, outputs, require

_SCRIPT = Path(__file__).with_name("wrk.lua")
_TIMEOUT_S = 60

_USERS = 400
"""Connections of an open loop. A late answer delays only the next request of its own connection, so
with more connections, arrivals depend less on answers."""


def closed_loop(
    port: int, path: str, bodies: Sequence[bytes], clients: int, seconds: float
) -> Measurement:
    """Run `clients` connections that post the bodies in turn; each waits for its last answer.

    Args:
        bodies: JSON, without line ends.
        seconds: rounded up to a whole number, because wrk accepts only whole seconds.

    Raises:
        ConfigError: wrk is not installed.
        LoadError: an answer was not 2xx or 3xx, did not come within a minute, or none came.
    """
    return _measured(port, bodies, clients, seconds, path)


def open_loop(
    port: int, path: str, bodies: Sequence[bytes], requests_per_s: float, seconds: float, seed: int
) -> Measurement:
    """Run many connections that together post bodies at a given rate.

    Between an answer and its next request, a connection waits for an exponentially distributed
    time. This time is so long that the answers' own time hardly matters, so arrivals are nearly
    Poisson; only the few connections that wait for an answer send nothing. No request waits for
    another request's answer, so latencies from sending are latencies from the arrival.

    Args:
        seed: of the waits.

    Raises:
        ConfigError, LoadError: see `closed_loop`.
    """
    wait_ms = 1e3 * _USERS / requests_per_s
    return _measured(port, bodies, _USERS, seconds, path, f"{wait_ms:g}", str(seed))


def _measured(
    port: int, bodies: Sequence[bytes], connections: int, seconds: float, *arguments: str
) -> Measurement:
    """Run the script with a file of the bodies and the arguments, and read what it saw."""
    seen = Measurement()
    with TemporaryDirectory(prefix="wrk-") as directory, counting_cpu(seen):
        file = Path(directory) / "bodies"
        file.write_bytes(b"\n".join(bodies))
        command = [require("wrk"), f"-c{connections}", "-t1", f"-d{math.ceil(seconds)}s"]
        command += [f"--timeout={_TIMEOUT_S}s", f"--script={_SCRIPT}", f"http://127.0.0.1:{port}"]
        (text,) = outputs([[*command, "--", str(file), *arguments]])
    summary = json.loads(text.splitlines()[-1])
    if summary["errors"] or not summary["requests"]:
        raise LoadError(f"wrk saw {summary['errors']} errors, {summary['requests']} answers")
    values, counts = np.array(summary["latencies"]).T
    seen.latencies_s = (np.repeat(values, counts) / 1e6).tolist()
    seen.sent = summary["requests"]
    seen.seconds = summary["microseconds"] / 1e6
    return seen
