"""Closed loops over HTTP by wrk."""

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


def closed_loop(port: int, pool: Sequence[bytes], clients: int, seconds: float) -> Measurement:
    """Run `clients` connections that send the requests in turn; each waits for its last answer.

    Args:
        pool: requests as `post_bytes` makes them, all to one path, without line ends in the bodies.
        seconds: rounded up to a whole number, because wrk accepts only whole seconds.

    Raises:
        ConfigError: wrk is not installed.
        LoadError: an answer was not 2xx or 3xx, did not come within a minute, or none came.
    """
    seen = Measurement()
    heads, bodies = zip(*(each.split(b"\r\n\r\n", 1) for each in pool), strict=True)
    with TemporaryDirectory(prefix="wrk-") as directory, counting_cpu(seen):
        file = Path(directory) / "bodies"
        file.write_bytes(b"\n".join(bodies))
        command = [require("wrk"), f"-c{clients}", "-t1", f"-d{math.ceil(seconds)}s"]
        command += [f"--timeout={_TIMEOUT_S}s", f"--script={_SCRIPT}", f"http://127.0.0.1:{port}"]
        (text,) = outputs([[*command, "--", str(file), heads[0].split()[1].decode()]])
    summary = json.loads(text.splitlines()[-1])
    if summary["errors"] or not summary["requests"]:
        raise LoadError(f"wrk saw {summary['errors']} errors, {summary['requests']} answers")
    values, counts = np.array(summary["latencies"]).T
    seen.latencies_s = (np.repeat(values, counts) / 1e6).tolist()
    seen.sent = summary["requests"]
    seen.seconds = summary["microseconds"] / 1e6
    return seen
