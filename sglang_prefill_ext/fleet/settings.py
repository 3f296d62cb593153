"""The settings of a fleet's routers, and the engines that they are told of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import msgspec
from yarl import URL

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.process.children import module_command
from sglang_prefill_ext.process.ports import reserved

API_KEY_VARIABLE = "PREFILL_FLEET_API_KEY"
"""Environment variable of routers, and of engines on Ray, with the engines' key; empty for none."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What every router process of one supervisor has in common.

    Attributes:
        grpc_port: port of `prefill_ext.v1`; None for no gRPC.
        extra_work: most extra work of a divided request, as a share of its own; None leaves it to
            how busy the fleet is.
        grace_s: seconds for requests under way when a router goes down.
        keep_alive_s: seconds for which a client's idle connection stays open.
    """

    host: str = "127.0.0.1"
    port: int = 30080
    grpc_port: int | None = None
    extra_work: float | None = None
    grace_s: float = 10.0
    keep_alive_s: int = 5

    def url_at(self, address: str) -> str:
        """The URL of routers that listen there, also where they listen at every address."""
        host = address if self.host in ("0.0.0.0", "::") else self.host
        return str(URL.build(scheme="http", host=host, port=self.port))

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Settings:
        return msgspec.json.decode(text, type=cls)


class Engines(msgspec.Struct, frozen=True):
    """What a supervisor tells its router processes, in a line, whenever it changes.

    Attributes:
        urls: of all engines, without a path.
        deployment: number of engines in each state, if Ray starts them; else empty.
    """

    urls: tuple[str, ...]
    deployment: dict[str, int] = {}

    def to_line(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_line(cls, line: bytes) -> Engines:
        return msgspec.json.decode(line, type=cls)


def router_command(
    settings: Settings, api_key: str, directory: str
) -> tuple[list[str], dict[str, str]]:
    """The command of a router process, and the environment variables that it needs besides.

    Args:
        api_key: of the engines; empty for none.
        directory: where all router processes write their metrics.
    """
    command = module_command("sglang_prefill_ext.fleet.server", settings.to_json())
    return command, {"PROMETHEUS_MULTIPROC_DIR": directory, API_KEY_VARIABLE: api_key}


def engine_urls(text: str) -> tuple[str, ...]:
    """Read the URLs of engines, with commas between them.

    Raises:
        ConfigError: one is no URL, has a path, or comes twice; or there is none at all.
    """
    urls = [each.strip().rstrip("/") for each in text.split(",") if each.strip()]
    if not urls:
        raise ConfigError("--engines: there is none. Give URLs, as http://a:30000,http://b:30000.")
    for url in urls:
        if problem := _problem(url):
            raise ConfigError(f"--engines: {url!r} {problem}. Give it as http://host:30000.")
        if urls.count(url) > 1:
            raise ConfigError(f"--engines: {url} comes twice. Name every engine once.")
    return tuple(urls)


@contextmanager
def reserved_ports(settings: Settings) -> Iterator[Settings]:
    """Reserve the ports that the router processes share; yield settings with free ones for 0.

    Raises:
        ConfigError: one is taken, or there is no such address.
    """
    with ExitStack() as held:
        port = held.enter_context(reserved(settings.host, settings.port))
        grpc_port = settings.grpc_port
        if grpc_port is not None:
            grpc_port = held.enter_context(reserved(settings.host, grpc_port, "--grpc-port"))
        yield msgspec.structs.replace(settings, port=port, grpc_port=grpc_port)


def _problem(url: str) -> str:
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return "is no URL of http or https"
        _ = parts.port
    except ValueError as error:
        return f"is no URL ({error})"
    return "has more than a host and a port" if url.count("/") > 2 or set("@?#") & set(url) else ""
