"""Loads on each kind of wire, and the tools that make them."""

from __future__ import annotations

from collections.abc import Sequence

from bench.load import Measurement
from bench.load_generators import h2load, wrk
from bench.load_generators.wires import GRPC_METHOD, Wire
from bench.workloads import ClosedLoop, Load, OpenLoop
from sglang_prefill_ext.errors import ConfigError

ENDPOINT = "/v1/score"


def require_tools(loads: Sequence[Load], wires: Sequence[Wire]) -> None:
    """Check that there is a tool for every load on every wire.

    Raises:
        ConfigError: an open loop over gRPC, which h2load does not make.
    """
    if Wire.GRPC in wires and any(isinstance(load, OpenLoop) for load in loads):
        raise ConfigError("h2load makes no open loop; leave out --wire grpc or the rate.")


def make_load(
    wire: Wire, port: int, bodies: Sequence[bytes], load: Load, rate: float, seconds: float
) -> Measurement:
    """Put a load on a server with the tool for it.

    Args:
        port: port at which the server accepts this wire's requests.
        bodies: of HTTP requests, or messages of gRPC.
        rate: requests per second of an open loop.
        seconds: length of the measurement.
    """
    if wire is Wire.GRPC:
        assert isinstance(load, ClosedLoop)
        return h2load.closed_loop(port, GRPC_METHOD, bodies, load.clients, seconds)
    if isinstance(load, ClosedLoop):
        return wrk.closed_loop(port, ENDPOINT, bodies, load.clients, seconds)
    return wrk.open_loop(port, ENDPOINT, bodies, rate, seconds, seed=0)
