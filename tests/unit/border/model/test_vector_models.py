"""An encoder computes prompts at once, also in a graph; on which stream widths are measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.pooler import CrossEncodingPooler, Pooler, PoolingType
from sglang.srt.models.bert import BertPooler
from sglang.srt.models.roberta import RobertaClassificationHead, RobertaEmbedding
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from sglang_prefill_ext.border.model.vector_models import SglangEncoder, SglangVectorModel

DEVICE = torch.device("meta")  # like a GPU: not the host, and its numbers cannot be read

PADDING, TYPES, VOCABULARY, HIDDEN = 1, 2, 10, 4
PROMPTS = [[5, PADDING, 7], [3], [PADDING, PADDING, 4, 9, 2]]
"""Token ids, some of which are that of padding, which is not numbered."""


class Counted(TorchDispatchMode):
    """Counts operations, and refuses to compare numbers: the host would wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.operations += 1
        if function is torch.ops.aten.equal.default:
            assert not any(len(tensor) for tensor in args), "waits for the device"
            return True
        return function(*args, **(kwargs or {}))


class Encoder(torch.nn.Module):
    """An encoder of SGLang whose layers pass on what they get.

    Args:
        head: SGLang's class of heads before the classifier or in its place, or None for embeddings.
    """

    def __init__(self, head: type | None, classes: int, activation: str | None) -> None:
        super().__init__()
        config: Any = SimpleNamespace(hidden_size=HIDDEN, num_labels=classes)
        config.sbert_ce_default_activation_function = activation
        embeddings: Any = RobertaEmbedding.__new__(RobertaEmbedding)
        torch.nn.Module.__init__(embeddings)
        embeddings.padding_idx = PADDING
        embeddings.word_embeddings = torch.nn.Embedding(VOCABULARY, HIDDEN)
        embeddings.position_embeddings = torch.nn.Embedding(20, HIDDEN, padding_idx=PADDING)
        embeddings.token_type_embeddings = torch.nn.Embedding(TYPES, HIDDEN)
        embeddings.LayerNorm = torch.nn.LayerNorm(HIDDEN)
        self.roberta = torch.nn.Module()
        self.roberta.embeddings = embeddings
        self.pooler: torch.nn.Module
        if head is None:
            self.pooler = Pooler(pooling_type=PoolingType.CLS, normalize=True)
        elif head is RobertaClassificationHead:
            self.pooler = CrossEncodingPooler(config, head(config))
        else:
            self.pooler = CrossEncodingPooler(
                config, torch.nn.Linear(HIDDEN, classes), head(config)
            )

    def forward(
        self, token_ids: Tensor, positions: Tensor, batch: Any, *, get_embedding: bool
    ) -> Any:
        assert get_embedding
        hidden = self.roberta.embeddings(token_ids, batch.seq_lens, positions, batch)
        return self.pooler(hidden, batch)


def batch_of(prompts: list[list[int]]) -> Any:
    lens = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int32)
    types = [VOCABULARY * (at % TYPES) for prompt in prompts for at, _ in enumerate(prompt)]
    return SimpleNamespace(
        input_ids=torch.tensor([*chain(*prompts)]) + torch.tensor(types),
        positions=torch.cat([torch.arange(len(prompt)) for prompt in prompts]),
        seq_lens=lens,
        extend_seq_lens=lens,
        dimensions=None,
    )


def encoder_of(model: Encoder) -> Any:
    encoder: Any = object.__new__(SglangEncoder)
    encoder.vocab_size, encoder._model = VOCABULARY, model
    return encoder


def packed(model: Encoder, batch: Any) -> tuple[Tensor, int]:
    """Return what the prompts get, and how many operations that took."""
    lens = batch.extend_seq_lens
    first = lens.cumsum(0) - lens
    with torch.inference_mode(), Counted() as counted:
        vectors = encoder_of(model)._run(batch, first)
    return vectors, counted.operations


class Recorded(TorchDispatchMode):
    """Records operations, to run them again on what their tensors contain then, as a graph does."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, result))
        return result

    def replay(self, result: Tensor) -> Tensor:
        """Run all operations again; return the tensor that `result` was the first time."""
        made: dict[int, Tensor] = {}
        for function, args, kwargs, before in self.calls:
            args, kwargs = tree_map_only(
                Tensor, lambda tensor: made.get(id(tensor), tensor), (args, kwargs)
            )
            after = function(*args, **kwargs)
            for old, new in zip(tree_leaves(before), tree_leaves(after), strict=True):
                made[id(old)] = new
        return made[id(result)]


each_head = pytest.mark.parametrize(
    ("head", "classes", "activation"),
    [
        (None, 0, None),
        (RobertaClassificationHead, 1, None),
        (RobertaClassificationHead, 1, "torch.nn.modules.activation.Sigmoid"),
        (RobertaClassificationHead, 3, "torch.nn.modules.activation.Softmax"),
        (BertPooler, 1, None),
        (BertPooler, 3, None),
    ],
)


@each_head
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_prompts_of_an_encoder_are_not_looped_over(
    head: type | None, classes: int, activation: str | None
) -> None:
    torch.manual_seed(0)
    model = Encoder(head, classes, activation)
    vectors, operations = packed(model, batch_of(PROMPTS))
    batch = batch_of(PROMPTS)  # for SGLang's own loops
    batch.token_type_ids = batch.input_ids // VOCABULARY
    with torch.inference_mode():
        token_ids = batch.input_ids % VOCABULARY
        looped = model(token_ids, batch.positions, batch, get_embedding=True).embeddings
    torch.testing.assert_close(vectors, looped.view(len(PROMPTS), -1))
    assert packed(model, batch_of(PROMPTS * 3))[1] == operations
    hooked = [each for each in model.modules() if each._forward_pre_hooks]
    assert not hooked


@each_head
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_what_a_graph_records_depends_on_the_contents_of_its_tensors_alone(
    head: type | None, classes: int, activation: str | None
) -> None:
    torch.manual_seed(0)
    model = Encoder(head, classes, activation)
    static = batch_of([[PADDING]] * sum(map(len, PROMPTS)))
    with torch.inference_mode(), Recorded() as recorded:
        result = encoder_of(model)._run(static, torch.arange(len(static.input_ids)))
    batch = batch_of(PROMPTS)
    static.input_ids.copy_(batch.input_ids)
    static.positions.copy_(batch.positions)
    with torch.inference_mode():
        of_all_tokens = recorded.replay(result)
    first = batch.positions == 0
    torch.testing.assert_close(of_all_tokens[first], packed(model, batch)[0])


@pytest.mark.parametrize("pooler", [CrossEncodingPooler, Pooler])
def test_lengths_on_the_device_are_not_read(pooler: type) -> None:
    """A copy to the host, or a loop over numbers of the device, would hold up the forward."""
    head = RobertaClassificationHead if pooler is CrossEncodingPooler else None
    model = Encoder(head, 3, None).to(DEVICE)
    assert type(model.pooler) is pooler
    batch = batch_of(PROMPTS)
    for name in ("input_ids", "positions", "seq_lens", "extend_seq_lens"):
        setattr(batch, name, getattr(batch, name).to(DEVICE))
    vectors, _ = packed(model, batch)
    assert vectors.device == DEVICE
    assert vectors.shape == (len(PROMPTS), 3 if head else HIDDEN)


def test_the_input_of_the_measured_forward_is_made_on_its_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    zeros = torch.zeros

    @contextmanager
    def stream() -> Iterator[None]:
        calls.append("on")
        yield
        calls.append("off")

    def made(*shape: int, **options: Any) -> torch.Tensor:
        calls.append("input")
        return zeros(*shape, **options)

    model: Any = object.__new__(SglangVectorModel)
    model.device, model.stream = torch.device("cpu"), stream
    model._has_states, model._hidden_size = True, 3
    model.prepare = lambda *_inputs, **_options: lambda: zeros(1, 7)
    monkeypatch.setattr(torch, "zeros", made)
    assert model._measured_widths() == (4, 3)
    assert calls == ["on", "input", "off"]
