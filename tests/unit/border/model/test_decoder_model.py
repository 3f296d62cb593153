"""Which embeddings the layers of Gemma 4 E2B and E4B get."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from sglang_prefill_ext.border.model.decoder_model import look_media_up_as_padding


def test_names_of_pictures_and_sounds_are_looked_up_as_padding() -> None:
    table = nn.Embedding(9, 2)
    media = {"image_token_id": 5, "video_token_id": 6, "audio_token_id": 7}
    of_text = SimpleNamespace(pad_token_id=1)
    config = SimpleNamespace(**media, get_text_config=lambda: of_text)
    model = SimpleNamespace(model=SimpleNamespace(embed_tokens_per_layer=table), config=config)
    assert look_media_up_as_padding(model)
    ids = torch.tensor([2, 5, 6, 7, 8])
    assert torch.equal(table(ids), table(torch.tensor([2, 1, 1, 1, 8])))
    assert ids.tolist() == [2, 5, 6, 7, 8]


def test_other_models_have_no_such_table() -> None:
    assert not look_media_up_as_padding(SimpleNamespace(model=SimpleNamespace()))
    assert not look_media_up_as_padding(SimpleNamespace())
