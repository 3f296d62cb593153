from __future__ import annotations

from types import SimpleNamespace

import pytest

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
