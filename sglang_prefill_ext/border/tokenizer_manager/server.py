"""`PrefillServer`: all that a front-end process has besides SGLang's tokenizer manager."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sglang_prefill_ext.border.grammars import Grammars
from sglang_prefill_ext.border.tokenizer_manager.call_records import CallRecords
from sglang_prefill_ext.border.tokenizer_manager.frontend_link import TokenizerManagerLink
from sglang_prefill_ext.border.tokenizer_manager.gc_frontend import FrontendGc
from sglang_prefill_ext.border.tokenizer_manager.token_output import ReasoningCount
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
        embed: front end of a model that makes vectors; None for one that generates.
        tokens: front end of a model that generates; None for one that makes vectors.
        texts: encodes texts in the manager's place; None if the manager encodes them unusually.
        chats: encodes chats; None if the tokenizer encodes in a way of its own.
        reasoning: counts the reasoning of answers.
    """

    manager: Any
    path: PackedPath
    link: TokenizerManagerLink
    score: ScoreFrontend
    records: CallRecords
    gc: FrontendGc
    grammars: Grammars
    embed: EmbedFrontend | None = None
    tokens: TokenFrontend | None = None
    texts: TextBatches[list[int]] | None = None
    chats: TextEncoder | None = None
    reasoning: ReasoningCount = field(default_factory=ReasoningCount)


def server_of(manager: Any) -> PrefillServer | None:
    """The packed path of a manager; None if the flag is off."""
    return getattr(manager, ATTRIBUTE, None)
