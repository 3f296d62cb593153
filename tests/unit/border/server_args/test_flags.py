from __future__ import annotations

import logging
from argparse import Namespace
from types import SimpleNamespace

import pytest
from sglang.srt.utils.common import UvicornAccessLogFilter

from sglang_prefill_ext.border import activation
from sglang_prefill_ext.border.server_args import flags
from sglang_prefill_ext.config import PrefillOnlyConfig, TokenizerChoice
from sglang_prefill_ext.texts import libraries


def test_a_tokenizer_library_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = PrefillOnlyConfig(tokenizer=TokenizerChoice.GIGATOKEN)
    server_args = SimpleNamespace(**{activation.ATTRIBUTE: SimpleNamespace(config=config)})
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"Install sglang-prefill-ext\[gigatoken\]"):
        flags.refuse_impossible(None, server_args)


def test_a_socket_that_cannot_be_made_is_refused() -> None:
    config = PrefillOnlyConfig(attach="/dev/null/engine.sock")
    server_args = SimpleNamespace(**{activation.ATTRIBUTE: SimpleNamespace(config=config)})
    with pytest.raises(SystemExit, match="--prefill-only-attach: /dev/null cannot be created"):
        flags.refuse_impossible(None, server_args)


@pytest.mark.patch("P02")
@pytest.mark.parametrize(
    ("enabled", "given", "left_out"),
    [
        (True, [], ["/prefill_only/facts"]),
        (True, ["/health"], ["/health", "/prefill_only/facts"]),
        (True, ["/prefill_only/facts"], ["/prefill_only/facts"]),
        (False, ["/health"], ["/health"]),
    ],
)
def test_what_routers_ask_each_second_is_not_in_the_access_log(
    monkeypatch: pytest.MonkeyPatch, enabled: bool, given: list[str], left_out: list[str]
) -> None:
    monkeypatch.setattr(activation, "attach", lambda *_: None)
    server_args = SimpleNamespace(device="cpu", uvicorn_access_log_exclude_prefixes=given)
    flags.attach_config(server_args, type, Namespace(enable_prefill_only=enabled))
    found = server_args.uvicorn_access_log_exclude_prefixes
    assert found == left_out
    keeps = UvicornAccessLogFilter(found).filter
    assert keeps(_access("GET /prefill_only/facts?known=a")) is not enabled
    assert keeps(_access("POST /prefill_only/rows"))


def _access(request: str) -> logging.LogRecord:
    method, path = request.split()
    args = ("127.0.0.1:1", method, path, "1.1", 200)
    said = '%s - "%s %s HTTP/%s" %d'
    return logging.LogRecord("uvicorn.access", logging.INFO, "", 0, said, args, None)
