"""Uses those engines of a fleet that answer alike; takes out those that differ or are silent."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

from sglang_prefill_ext.attach.carrier import EngineState, Offer, digest_of
from sglang_prefill_ext.config.knobs import flag_name
from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.fleet.health import Health
from sglang_prefill_ext.fleet.loads import Loads
from sglang_prefill_ext.fleet.planning.cost import Computed, Speed
from sglang_prefill_ext.fleet.replica import Replica
from sglang_prefill_ext.fleet.replica_load import ReplicaLoad

logger = logging.getLogger(__name__)

_KNOBS = ("attention", "max_forward_tokens", "max_items")
"""Fields of the configuration that answers depend on."""


class Member:
    """An engine's offer, and what it has to have in common with others.

    Attributes:
        traits: by the name that users know; made once for an offer, whose tokenizer has many MB.
        since_s: since when the engine has made it, Unix time.
        speed: the one that it reported first; None before.
    """

    def __init__(self, offer: Offer, since_s: float = 0.0) -> None:
        self.offer, self.since_s = offer, since_s
        self.traits = _traits_of(offer)
        self.speed: Speed | None = None


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
        "tokenizer": offer.tokenizer_digest,
        "ids of sample texts": digest_of(str(facts.probes)),
        "chat template": digest_of(str(offer.reranking)),
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


def chosen(
    members: Mapping[str, Member], current: Member | None, *, keeping: bool = True
) -> Member | None:
    """Return a member with the traits that most engines have.

    Args:
        members: all engines that answer.
        keeping: of traits that are as frequent, those of `current` are taken. Otherwise those that
            an engine has had for longest, so that all router processes begin with the same ones.

    Returns:
        One of `members`; or `current`, if there are none, or no traits are more frequent than its.
    """
    votes = Counter(str(member.traits) for member in members.values())

    def rank(each: Member) -> tuple[int, bool, float]:
        return votes[str(each.traits)], keeping and each is current, -each.since_s

    candidates = [*members.values()] if current is None else [current, *members.values()]
    return max(candidates, key=rank, default=None)


def _explain(replica: Replica, why: str, level: int) -> None:
    """Keep why an engine gets no work, and log it if that is new."""
    if replica.why != why:
        logger.log(level, "Engine %s: %s", replica.url, why)
    replica.why = why


class Selection:
    """Which engines are in use, from what they say of themselves.

    Args:
        replicas: all engines, by URL.
        loads: those that are in use.
        on_offer: called with the offer of the engines in use, whenever their answers change.

    Attributes:
        settled: each engine has had the time to answer, so the choice changes only for a majority.
    """

    def __init__(
        self, replicas: Mapping[str, Replica], loads: Loads, on_offer: Callable[[Offer], None]
    ) -> None:
        self._replicas = replicas
        self._loads = loads
        self._on_offer = on_offer
        self._alive: dict[str, Member] = {}
        self._chosen: Member | None = None
        self.settled = False

    @property
    def offer(self) -> Offer | None:
        """The offer of the engines in use; None before the first engine has answered."""
        return None if self._chosen is None else self._chosen.offer

    def take_state(self, replica: Replica, state: EngineState) -> None:
        """An engine has answered."""
        assert replica.offer is not None, "the first answer brings the offer"
        now_s = time.monotonic()
        known = self._alive.get(replica.url)
        if known is None or known.offer is not replica.offer:
            self._alive[replica.url] = Member(replica.offer, state.since_s)
            self._loads.pop(replica.url, None)  # it has restarted, or has other weights
        if state.schedulers:
            self._note_load(replica, state, now_s)
        self.choose()
        if (load := self._loads.get(replica.url)) is not None:
            load.draining = state.leaving
            load.halted = state.paused or not state.schedulers
            if state.leaving:
                _explain(replica, "It is shutting down.", logging.INFO)
            elif not state.schedulers:
                _explain(replica, "Its schedulers do not answer.", logging.WARNING)
            elif state.paused:
                _explain(replica, "It is paused; /continue_generation ends that.", logging.INFO)
            else:
                replica.why = ""

    def take_silence(self, replica: Replica, error: EngineUnavailableError) -> None:
        """An engine has failed to answer."""
        _explain(replica, str(error), logging.WARNING)
        now_s = time.monotonic()
        load = self._loads.get(replica.url)
        if load is not None:
            load.probed(now_s, ok=False)
        if load is None or load.health(now_s) is Health.DOWN:
            self._alive.pop(replica.url, None)
            replica.differs = False  # as far as is known now
            self.choose()

    def drain(self, url: str) -> None:
        """An engine leaves: it gets no more work."""
        self._alive.pop(url, None)
        if url in self._loads:
            self._loads[url].draining = True

    def choose(self) -> None:
        """Put the engines into the fleet that answer alike, and take out those that differ."""
        found = chosen(self._alive, self._chosen, keeping=self.settled)
        if found is not None and (self._chosen is None or found.traits != self._chosen.traits):
            self._chosen = found
            self._on_offer(found.offer)
        for name, own in self._alive.items():
            replica = self._replicas[name]
            assert self._chosen is not None, "one was chosen"
            why = difference(own, self._chosen)
            replica.differs = bool(why)
            if why:
                _explain(replica, f"It is not used, as it differs. {why}", logging.ERROR)
                self._loads.pop(name, None)
            elif own.speed is None:
                _explain(replica, "Its schedulers have not answered yet.", logging.INFO)
            elif name not in self._loads:
                logger.info("Engine %s is in the fleet.", name)
                self._loads[name] = ReplicaLoad(own.speed, time.monotonic())
                replica.why = ""

    def _note_load(self, replica: Replica, state: EngineState, now_s: float) -> None:
        """Record what an engine reports: its speed at first, its work later."""
        member, load = self._alive[replica.url], self._loads.get(replica.url)
        if member.speed is None:
            member.speed = Speed.of_status(state.schedulers[0], member.offer.pair_tokens)
        if load is not None:
            load.probed(now_s, ok=True)
            if not state.late:
                load.computed(Computed.of_status(state.schedulers[0]), now_s)
                others_tokens = state.outstanding_tokens - load.tokens
                load.reported(others_tokens * member.speed.token_s, now_s)
