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


def closed_loop(port: int, pool: Sequence[bytes], clients: int, seconds: float) -> Measurement:
    """Run `clients` connections that send the requests in turn; each waits for its last answer.

    Args:
        pool: requests as `post_bytes` makes them, all to one path, without line ends in the bodies.
        seconds: rounded up to a whole number, because wrk accepts only whole seconds.

    Raises:
        ConfigError: wrk is not installed.
        LoadError: an answer was not 2xx or 3xx, did not come within a minute, or none came.
    """
    return _measured(port, pool, clients, seconds)


def open_loop(
    port: int, pool: Sequence[bytes], requests_per_s: float, seconds: float, seed: int
) -> Measurement:
    """Run many connections that together send requests at a given rate.

    Between an answer and its next request, a connection waits for an exponentially distributed
    time. This time is so long that the answers' own time hardly matters, so arrivals are nearly
    Poisson; only the few connections that wait for an answer send nothing. No request waits for
    another request's answer, so latencies from sending are latencies from the arrival.

    Args:
        pool, seconds: see `closed_loop`.
        seed: of the waits.

    Raises:
        ConfigError, LoadError: see `closed_loop`.
    """
    wait_ms = 1e3 * _USERS / requests_per_s
    return _measured(port, pool, _USERS, seconds, f"{wait_ms:g}", str(seed))


def _measured(
    port: int, pool: Sequence[bytes], connections: int, seconds: float, *waits: str
) -> Measurement:
    """Run the script with a file of the bodies, their path and the waits, and read what it saw."""
    seen = Measurement()
    heads, bodies = zip(*(each.split(b"\r\n\r\n", 1) for each in pool), strict=True)
    path = heads[0].split()[1].decode()
    with TemporaryDirectory(prefix="wrk-") as directory, counting_cpu(seen):
        file = Path(directory) / "bodies"
        file.write_bytes(b"\n".join(bodies))
        command = [require("wrk"), f"-c{connections}", "-t1", f"-d{math.ceil(seconds)}s"]
        command += [f"--timeout={_TIMEOUT_S}s", f"--script={_SCRIPT}", f"http://127.0.0.1:{port}"]
        (text,) = outputs([[*command, "--", str(file), path, *waits]])
    summary = json.loads(text.splitlines()[-1])
    if summary["errors"] or not summary["requests"]:
        raise LoadError(f"wrk saw {summary['errors']} errors, {summary['requests']} answers")
    values, counts = np.array(summary["latencies"]).T
    seen.latencies_s = (np.repeat(values, counts) / 1e6).tolist()
    seen.sent = summary["requests"]
    seen.seconds = summary["microseconds"] / 1e6
    return seen
