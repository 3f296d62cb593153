from __future__ import annotations

import numpy as np
import pytest

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.pack import pack_rows
from sglang_prefill_ext.frontend.text_pack import pack_texts
from sglang_prefill_ext.tokenization.encoder import flat
from sglang_prefill_ext.wire.packed import NO_INTS, int_array
from tests.unit.frontend.links import StubLink

LABELS = int_array([7]), NO_INTS


class CuttingLink(StubLink):
    """Every byte is a token; the shared text comes apart."""

    def encode_joined(self, shared, items, *, item_first):  # type: ignore[no-untyped-def]
        return int_array(list(shared.encode())), flat([list(item.encode()) for item in items])


@pytest.mark.parametrize("link", [StubLink(), CuttingLink()])
@pytest.mark.parametrize("item_first", [False, True])
@pytest.mark.parametrize(
    ("shared", "items"),
    [("abc", ["x", "y"]), ("abc", ["xa", "xb"]), ("", ["x"]), ("ab", ["", "c"])],
)
def test_texts_are_packed_as_their_whole_rows(
    link: StubLink, shared: str, items: list[str], item_first: bool
) -> None:
    whole = [item + shared if item_first else shared + item for item in items]
    wanted = pack_rows([list(text.encode()) for text in whole], LABELS, 256)
    found = pack_texts(link, shared, items, item_first, LABELS, 256)
    assert found.prefix_len == wanted.prefix_len
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    np.testing.assert_array_equal(found.suffix_lens, wanted.suffix_lens)


def test_a_text_without_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="empty"):
        pack_texts(StubLink(), "", ["", "x"], False, LABELS, 256)
