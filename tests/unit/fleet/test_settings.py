from __future__ import annotations

import os

import pytest

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.fleet.settings import (
    API_KEY_VARIABLE,
    Engines,
    Settings,
    engine_urls,
    reserved_ports,
    router_command,
)
from sglang_prefill_ext.process.ports import reserved


def test_urls_are_divided_by_commas() -> None:
    assert engine_urls("http://a:30000, https://[::1]:1/") == ("http://a:30000", "https://[::1]:1")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "there is none"),
        (" , ", "there is none"),
        ("a:30000", "is no URL of http"),
        ("http://", "is no URL of http"),
        ("http://a:port", "is no URL"),
        ("http://a:99999", "is no URL"),
        ("http://a:30000/v1", "more than a host and a port"),
        ("http://a:30000?x", "more than a host and a port"),
        ("http://a:30000#x", "more than a host and a port"),
        ("http://user@a:30000", "more than a host and a port"),
        ("http://a:1,http://a:1/", "comes twice"),
    ],
)
def test_what_is_no_engine_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        engine_urls(text)


def test_settings_travel_as_json() -> None:
    settings = Settings(port=5, extra_work=0.5)
    assert Settings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize(
    ("host", "address", "url"),
    [
        ("127.0.0.1", "10.0.0.1", "http://127.0.0.1:5"),
        ("0.0.0.0", "10.0.0.1", "http://10.0.0.1:5"),
        ("::", "fd00::1", "http://[fd00::1]:5"),
        ("::1", "10.0.0.1", "http://[::1]:5"),
    ],
)
def test_routers_have_an_url_whatever_address_they_listen_at(
    host: str, address: str, url: str
) -> None:
    assert Settings(host=host, port=5).url_at(address) == url


def test_the_key_is_no_part_of_a_command_and_this_process_stays_as_it_is() -> None:
    before = dict(os.environ)
    command, env = router_command(Settings(), "secret", "/metrics")
    assert "secret" not in " ".join(command)
    assert env == {API_KEY_VARIABLE: "secret", "PROMETHEUS_MULTIPROC_DIR": "/metrics"}
    assert dict(os.environ) == before


def test_engines_travel_as_a_line() -> None:
    engines = Engines(("http://a:1", "http://b:2"), {"RUNNING": 2})
    line = engines.to_line()
    assert b"\n" not in line
    assert Engines.from_line(line) == engines


@pytest.mark.parametrize(("name", "flag"), [("port", "--port"), ("grpc_port", "--grpc-port")])
def test_a_port_that_is_taken_is_named_by_its_flag(name: str, flag: str) -> None:
    with (
        reserved("127.0.0.1", 0) as taken,
        pytest.raises(ConfigError, match=f"--host 127.0.0.1 {flag} {taken} cannot be used"),
        reserved_ports(Settings(**({"port": 0} | {name: taken}))),
    ):
        pass
