"""Decides which engines make up a fleet: those that give the same answers. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from sglang_prefill_ext.attach.carrier import Offer
from sglang_prefill_ext.config.knobs import flag_name
from sglang_prefill_ext.fleet.planning.cost import Speed

_KNOBS = ("attention", "max_forward_tokens", "max_items")
"""Fields of the configuration that answers depend on."""


@dataclass(slots=True, eq=False)
class Member:
    """An engine's offer, and what it has to have in common with others.

    Attributes:
        traits: by the name that users know; made once for an offer, whose tokenizer has many MB.
        speed: the one that it reported first; None before.
    """

    offer: Offer
    traits: dict[str, str]
    speed: Speed | None = None

    @classmethod
    def of(cls, offer: Offer) -> Self:
        return cls(offer, _traits_of(offer))


def _traits_of(offer: Offer) -> dict[str, str]:
    facts, config = offer.facts, offer.facts.config
    named: dict[str, object] = {
        "--model-path": offer.model_path,
        "--served-model-name": offer.served_name,
        "SGLang's version": facts.sglang_version,
        "size of the vocabulary": facts.vocab_size,
        "size of the label vocabulary": facts.label_vocab_size,
        "hidden size": facts.embeddings.width,
        "--dtype": facts.embeddings.dtype,
        "kind of model": "generation" if facts.is_generation else "vectors",
        "classes": ", ".join(facts.class_names),
        "tokenizer": _digest(facts.tokenizer),
        "ids of sample texts": _digest(str(facts.probes)),
        "chat template": _digest(str(offer.reranking)),
        "why nothing is packed": facts.declined or "all is packed",
    }
    named |= {flag_name(name): getattr(config, name) for name in _KNOBS}
    return {name: str(value) for name, value in (named | offer.settings).items()}


def difference(own: Member, others: Member) -> str:
    """Name what is different about an engine; empty if nothing is."""
    mine, theirs = own.traits, others.traits
    return "; ".join(
        f"{name}: {mine.get(name)!r}, the others have {theirs.get(name)!r}"
        for name in mine | theirs
        if mine.get(name) != theirs.get(name)
    )


def chosen(members: Mapping[str, Member], current: Member | None) -> Member | None:
    """Return a member with the traits that most engines have.

    Args:
        members: all engines that answer.

    Returns:
        One of `members`; or `current`, if there are none, or no traits are more frequent than its.
    """
    if not members:
        return current
    keys = {name: str(member.traits) for name, member in members.items()}
    counts = Counter(keys.values())
    ours = None if current is None else str(current.traits)
    best = max(counts, key=lambda key: (counts[key], key == ours))
    if current is not None and best == ours:
        return current
    return next(member for name, member in members.items() if keys[name] == best)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
