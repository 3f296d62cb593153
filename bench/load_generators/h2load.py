"""Closed loops over gRPC by h2load.

A unary gRPC call is an HTTP/2 POST. Its body is five bytes (one that says whether the message is
compressed, and its length in four) and the message. An h2load process sends only one body, so every
client is a process.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.http_client import LoadError
from bench.load import Measurement
from bench.load_generators.tools import counting_cpu, outputs, require

_OK = 200


def framed(message: bytes) -> bytes:
    """Return the body of a gRPC request with an uncompressed message."""
    return struct.pack(">BI", 0, len(message)) + message


def closed_loop(
    port: int, method: str, messages: Sequence[bytes], clients: int, seconds: float
) -> Measurement:
    """Run `clients` connections; each sends the same message again after every answer.

    Only answers that came while all clients were running are counted. h2load has no warm-up: it
    would not log those requests, so nobody could tell whether the server answered them all. gRPC
    reports errors in trailers, which h2load does not read: check the server's own counters.

    Args:
        method: ``/package.Service/Method``.
        messages: at least as many as clients.

    Raises:
        ConfigError: h2load is not installed.
        LoadError: an HTTP status was not 200, or nothing was answered.
    """
    seen = Measurement()
    with TemporaryDirectory(prefix="h2load-") as directory, counting_cpu(seen):
        commands, logs = [], []
        for number in range(clients):
            body, log = (Path(directory) / f"{number}.{kind}" for kind in ("body", "log"))
            body.write_bytes(framed(messages[number]))
            logs.append(log)
            commands.append(
                [
                    *(require("h2load"), "-c1", "-m1", "-t1"),
                    *(f"--duration={seconds:g}", f"--data={body}", f"--log-file={log}"),
                    *("--header=content-type: application/grpc", "--header=te: trailers"),
                    f"http://127.0.0.1:{port}{method}",
                ]
            )
        outputs(commands)
        answers = [_answers(log) for log in logs]
    return _joined(seen, answers)


def _answers(log: Path) -> np.ndarray:
    """Read h2load's log: for every answer its start in µs, status, and duration in µs."""
    rows = [line.split("\t")[:3] for line in log.read_text().splitlines()]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def _joined(seen: Measurement, answers: Sequence[np.ndarray]) -> Measurement:
    """Add the answers that came while all clients were running to the measurement."""
    if not all(len(each) for each in answers):
        raise LoadError("h2load had no answer")
    every = np.concatenate(answers)
    if (every[:, 1] != _OK).any():
        raise LoadError(f"h2load had answers of status {sorted(set(every[:, 1].tolist()))}")
    ends = every[:, 0] + every[:, 2]
    first = max(int(each[:, 0].min()) for each in answers)
    last = min(int((each[:, 0] + each[:, 2]).max()) for each in answers)
    counted = every[(every[:, 0] >= first) & (ends <= last)]
    if not len(counted):
        raise LoadError("h2load's clients were never at work at the same time")
    seen.latencies_s = (counted[:, 2] / 1e6).tolist()
    seen.seconds = (last - first) / 1e6
    seen.sent = len(every)
    return seen
