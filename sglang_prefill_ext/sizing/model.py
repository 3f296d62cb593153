"""Sizes of a decoder, read from its `config.json`. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self, cast

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.sizing.layer_settings import layer_kinds, sublayers_of
from sglang_prefill_ext.sizing.mixers import Attention, Mixer
from sglang_prefill_ext.sizing.recurrences import StateSpace
from sglang_prefill_ext.sizing.settings import Settings, number_of, size_of
from sglang_prefill_ext.sizing.sublayers import Experts, Sublayer

_UNCOUNTED = (
    "linear_attn_config",
    "zero_expert_num",
    "attention_other_setting",
    "index_topk",
    "altup_num_inputs",
    "moe_latent_size",
    "mamba_dt_rank",
    "attn_layer_indices",
    "hybrid_layer_ids",
    "type_vocab_size",
    "is_encoder_decoder",
    "local_attention",
    "residual_moe",
    "H_cycles",
    "loop_num",
    "layer_group_size",
)
"""Settings of models that are not counted here: other recurrences or sparse attention, experts that
do nothing as in LongCat or come besides an MLP as in Grok 2, several residuals as in Gemma 3n,
layers that run several times, encoders."""
_TIED = ("gemma", "cohere", "lfm2")
"""Beginnings of types of models that have one table of embeddings unless they say otherwise."""


@dataclass(frozen=True)  # no slots: `cached_property` needs a `__dict__`
class ModelShape:
    """Sizes of a decoder.

    Attributes:
        layers: as the model counts them.
        hidden: size of the residual.
        sublayers: the steps of all layers, in the order in which they run.
        tied: the output head has the weights of the embedding.
        layer_embeddings: numbers of the tables from which layers look tokens up.
    """

    layers: int
    hidden: int
    vocabulary: int
    sublayers: tuple[Sublayer, ...]
    tied: bool = False
    layer_embeddings: int = 0

    @classmethod
    def from_directory(cls, model: Path) -> Self:
        """Read the `config.json` of a model; `_UNCOUNTED` says of which it cannot.

        Raises:
            ConfigError: there is no such file, or it lacks a size.
        """
        path = model / "config.json"
        if not path.is_file():
            raise ConfigError(
                f"model {str(model)!r}: there is no config.json; name a local directory that "
                "holds a model in Hugging Face format."
            )
        try:
            return cls.of_config(json.loads(path.read_text()))
        except ConfigError as error:
            raise ConfigError(f"model {str(model)!r}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"model {str(model)!r}: config.json is no JSON ({error}).") from error

    @classmethod
    def of_config(cls, config: Settings) -> Self:
        """Read what a `config.json`, or SGLang's form of it, has.

        Raises:
            ConfigError: it lacks a size, or is that of a model that cannot be counted.
        """
        try:
            return cls._read(config)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            hint = f" If it is one, write {error} into the file: the default is left out."
            raise ConfigError(
                "config.json is not that of a decoder that can be counted "
                f"({type(error).__name__}: {error}); name a Qwen-, Llama-, Mistral-, Mixtral-, "
                "DeepSeek-, Gemma-, Granite-, LFM2-, Falcon-H1- or Nemotron-H-like model."
                + (hint if isinstance(error, KeyError) else "")
            ) from error

    @classmethod
    def _read(cls, config: Settings) -> Self:
        whole = config.get("thinker_config") or config  # of Qwen3-Omni
        config = whole.get("text_config") or whole.get("llm_config") or whole
        if uncounted := [name for name in _UNCOUNTED if config.get(name)]:
            raise ValueError(f"it has {uncounted[0]}")
        if config.get("model_type") == "qwen":  # its settings say twice its width
            raise ValueError("it is of the first Qwen generation")
        layers, sublayers = len(layer_kinds(config)), sublayers_of(config)
        if not any(isinstance(each, Attention) for each in sublayers):
            raise ValueError("no layer has attention")
        tied = str(config.get("model_type")).startswith(_TIED)
        names = "tie_word_embeddings", "tie_embedding"
        said = [each[name] for each in (whole, config) for name in names if name in each]
        own = number_of(config, "hidden_size_per_layer_input")
        return cls(
            layers=layers,
            hidden=size_of(config, "hidden_size"),
            vocabulary=size_of(config, "vocab_size"),
            sublayers=sublayers,
            tied=bool(said[-1]) if said else tied,
            layer_embeddings=own and layers * own * size_of(config, "vocab_size_per_layer_input"),
        )

    @cached_property
    def before(self) -> Counter[Sublayer]:
        """Each step that all tokens need, and how often: those before `last_mixer`."""
        return Counter(self.sublayers[: self._last])

    @property
    def last_mixer(self) -> Mixer:
        """The last step in which tokens read others."""
        return cast(Mixer, self.sublayers[self._last])

    @cached_property
    def behind(self) -> Counter[Sublayer]:
        """Each step that only the read positions need, and how often."""
        return Counter(self.sublayers[self._last + 1 :])

    @cached_property
    def counts(self) -> Counter[Sublayer]:
        """Each step of all layers, and how often there is one."""
        return Counter(self.sublayers)

    @property
    def experts(self) -> Experts | None:
        """Those of a layer that has some; None for a dense model."""
        return next((each for each in self.counts if isinstance(each, Experts)), None)

    @property
    def is_replayable(self) -> bool:
        """Whether CUDA graphs replay its forwards, which they do without Mamba-2."""
        return not any(isinstance(each, StateSpace) for each in self.mixers)

    @property
    def mixers(self) -> Iterator[Mixer]:
        """Each step in which tokens read others."""
        return (each for each in self.counts if isinstance(each, Mixer))

    @property
    def pair_tokens(self) -> float:
        """Operations of one attention pair in all layers, divided by those of one token.

        Layers with a window are left out, because their pairs grow with the tokens only.
        """
        return self.pair_operations / self.body_operations

    @cached_property
    def pair_operations(self) -> int:
        """Operations for one pair of tokens in all layers whose attention has no window."""
        return sum(
            count * each.pair_operations
            for each, count in self.counts.items()
            if isinstance(each, Attention) and each.window is None
        )

    @cached_property
    def body_operations(self) -> int:
        """Operations of the weights of all layers for one token."""
        return sum(2 * count * each.active for each, count in self.counts.items())

    @property
    def weights(self) -> int:
        """Weights in all layers; the output head is counted with the read-out."""
        return sum(count * each.weights for each, count in self.counts.items())

    @property
    def stored_weights(self) -> int:
        """Weights in all layers, the embeddings and the output head."""
        tables = (1 if self.tied else 2) * self.vocabulary * self.hidden
        return self.weights + tables + self.layer_embeddings

    def read_weights(self, tokens: int) -> int:
        """Weights in all layers that a forward of so many tokens reads."""
        return round(sum(count * each.read_weights(tokens) for each, count in self.counts.items()))

    def readout_operations(self, columns: int) -> int:
        """Operations of the output head for one row and `columns` entries of the vocabulary."""
        return 2 * self.hidden * columns

    @cached_property
    def _last(self) -> int:
        mixers = [place for place, each in enumerate(self.sublayers) if isinstance(each, Mixer)]
        return mixers[-1]
