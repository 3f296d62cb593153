"""What a front-end process has beside SGLang's tokenizer manager, in one object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang_prefill_ext.attach.broker import Broker
from sglang_prefill_ext.border.tokenizer_manager.call_records import CallRecords
from sglang_prefill_ext.border.tokenizer_manager.frontend_link import TokenizerManagerLink
from sglang_prefill_ext.border.tokenizer_manager.gc_frontend import FrontendGc
from sglang_prefill_ext.frontend.embed.embed_frontend import EmbedFrontend
from sglang_prefill_ext.frontend.packed_path import PackedPath
from sglang_prefill_ext.frontend.score.score_frontend import ScoreFrontend
from sglang_prefill_ext.frontend.text_batch import TextBatches
from sglang_prefill_ext.frontend.token.token_frontend import TokenFrontend
from sglang_prefill_ext.texts.text_encoder import TextEncoder

ATTRIBUTE = "_prefill_only"


@dataclass(slots=True)
class PrefillServer:
    """The packed path of one tokenizer manager; hooks find everything here.

    Attributes:
        embed: of a model that makes vectors; None for one that generates.
        tokens: of a model that generates; None without a tokenizer, too.
        texts: encodes what the manager would; None where that is unusual.
        chats: encodes chats; None where the tokenizer has a way of its own.
        broker: of front ends in other processes, if there may be any.
    """

    manager: Any
    path: PackedPath
    link: TokenizerManagerLink
    score: ScoreFrontend
    records: CallRecords
    gc: FrontendGc
    embed: EmbedFrontend | None = None
    tokens: TokenFrontend | None = None
    texts: TextBatches[list[int]] | None = None
    chats: TextEncoder | None = None
    broker: Broker | None = None


def server_of(manager: Any) -> PrefillServer | None:
    """The packed path of a manager; None if the flag is off."""
    server: PrefillServer | None = getattr(manager, ATTRIBUTE, None)
    return server
