"""A small model, for tests of code that runs a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sglang_prefill_ext.attention.inputs import HeadShape, LayerInputs
from sglang_prefill_ext.forward.logits import ProductHead
from sglang_prefill_ext.forward.model import Adapted, Attend, Overrides, Recur
from sglang_prefill_ext.wire.reads import Best
from sglang_prefill_ext.wire.sampling import Sampling
from tests.unit.scheduling.caches import MemoryPool
from tests.unit.wire.strategies import VOCAB

LAYERS, HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM = 2, 4, 2, 8, 6
HIDDEN, POSITIONS = 24, 64
SCALE = HEAD_DIM**-0.5


class TinyModel:
    """Embeddings, two layers of grouped-query attention and a linear head."""

    device = torch.device("cpu")
    vocab_size = VOCAB
    dtype = torch.float32
    heads = (HeadShape(HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM),)
    last_layer: int | None = LAYERS - 1
    vector_width = state_width = 0
    unit_length = False
    causal = True
    longest_prompt: int | None = None
    recurrence = None
    alone = True

    def __init__(self, *, asynchronous: bool = False) -> None:
        self.asynchronous = asynchronous
        self.pool = MemoryPool()
        self.logit_rows: list[int] = []
        self.row_lens: list[list[int]] = []
        self.adapted: list[list[Adapted]] = []
        generator = torch.Generator().manual_seed(7)

        def weight(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator) / math.sqrt(shape[0])

        self.tokens, self.positions = weight(VOCAB, HIDDEN), weight(POSITIONS, HIDDEN)
        self.query = [weight(HIDDEN, HEADS * HEAD_DIM) for _ in range(LAYERS)]
        self.key = [weight(HIDDEN, KV_HEADS * HEAD_DIM) for _ in range(LAYERS)]
        self.value = [weight(HIDDEN, KV_HEADS * VALUE_DIM) for _ in range(LAYERS)]
        self.output = [weight(HEADS * VALUE_DIM, HIDDEN) for _ in range(LAYERS)]
        self.head = weight(HIDDEN, VOCAB)

    def move(self, device: torch.device) -> None:
        """Move everything to another device."""
        self.device = device
        for name, value in list(vars(self).items()):
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
            elif isinstance(value, list) and value and isinstance(value[0], Tensor):
                setattr(self, name, [each.to(device) for each in value])

    def stream(self) -> AbstractContextManager[object]:
        return nullcontext()

    def capturing(self) -> AbstractContextManager[object]:
        return nullcontext()

    def prepare(
        self,
        token_ids: Tensor,
        positions: Tensor,
        read_at: Tensor,
        row_lens: list[int],
        attend: Attend,
        overrides: Overrides | None = None,
        adapted: Sequence[Adapted] = (),
        *,
        shortened: bool,
        recur: Recur | None = None,
    ) -> Callable[[], Tensor]:
        assert recur is None
        assert sum(row_lens) == len(token_ids) == len(positions)
        self.row_lens.append(row_lens)
        self.adapted.append([*adapted])
        cut = self.last_layer if shortened else None
        return lambda: self._run(token_ids, positions, read_at, attend, overrides, adapted, cut)

    def _run(
        self,
        token_ids: Tensor,
        positions: Tensor,
        read_at: Tensor,
        attend: Attend,
        overrides: Overrides | None,
        adapted: Sequence[Adapted],
        cut: int | None,
    ) -> Tensor:
        embeds = self.tokens[token_ids]
        if overrides is not None:
            embeds[overrides.at] = overrides.embeds.to(embeds.dtype)
        hidden = 8 * (embeds + self.positions[positions % POSITIONS])
        for layer in range(LAYERS):
            own = _adapt(hidden, adapted, shortened=False)
            key, value = own @ self.key[layer], own @ self.value[layer]
            if layer == cut:
                hidden = hidden[read_at]
                own = _adapt(hidden, adapted, shortened=True)
            inputs = LayerInputs(
                (own @ self.query[layer]).view(-1, HEADS, HEAD_DIM),
                key.view(-1, KV_HEADS, HEAD_DIM),
                value.view(-1, KV_HEADS, VALUE_DIM),
                SCALE,
            )
            out = attend(layer, inputs)
            hidden = hidden + out.reshape(len(out), -1) @ self.output[layer]
        return hidden[read_at] if cut is None else hidden

    def product_head(self) -> ProductHead | None:
        return None

    def logits(self, hidden: Tensor) -> Tensor:
        self.logit_rows.append(len(hidden))
        return hidden @ self.head

    def draw(
        self,
        logits: Tensor,
        sampling: Sampling,
        positions: Tensor,
        num_top: int,
        listed: list[list[int]],
    ) -> tuple[Tensor, Best[Tensor]]:
        """Draw without randomness: the token is the sum of seed and position."""
        assert len(logits) == len(sampling) == len(positions) == len(listed)
        assert len(set(sampling.kinds.tolist())) == 1
        for row, (token, value) in zip(
            sampling.rows_of_biases.tolist(), sampling.biases.tolist(), strict=True
        ):
            logits[row, token] += value
        logits /= torch.tensor(sampling.draws["temperature"].copy())[:, None]
        log_probs = torch.log_softmax(logits, dim=-1)
        tokens = (torch.tensor(sampling.draws["seed"] % VOCAB) + positions) % VOCAB
        of_listed = [own[tokens] for own, tokens in zip(log_probs, listed, strict=True)]
        drawn, (top, ids) = tokens[:, None], log_probs.topk(num_top)
        best = Best(log_probs.gather(1, drawn), drawn.float(), top, ids.float())
        return torch.cat(of_listed), best


def _adapt(hidden: Tensor, adapted: Sequence[Adapted], *, shortened: bool) -> Tensor:
    """What layers read: each adapter multiplies it by a factor of its own."""
    if not adapted:
        return hidden
    lens = [part.reads if shortened else part.tokens for part in adapted]
    factors = torch.tensor([1 - sum(part.adapter.encode()) % 7 / 14 for part in adapted])
    return hidden * factors.repeat_interleave(torch.tensor(lens))[:, None]


def causal(_layer: int, inputs: LayerInputs) -> Tensor:
    """Attention of one prompt that sees what came before, computed by torch."""
    # The last layer asks for the last token only, which sees everything.
    return _attention(inputs, is_causal=len(inputs.q) == len(inputs.k))


def full(_layer: int, inputs: LayerInputs) -> Tensor:
    """Attention of one prompt that sees all of itself."""
    return _attention(inputs, is_causal=False)


def _attention(inputs: LayerInputs, *, is_causal: bool) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (inputs.q, inputs.k, inputs.v))
    how = {"is_causal": is_causal, "scale": inputs.scale, "enable_gqa": True}
    return scaled_dot_product_attention(q, k, v, **how)[0].transpose(0, 1)
