"""A synthetic product catalogue: items, shoppers' queries and how well they fit.

Everything is generated from the small tables below by fixed seeds, so every call on every
machine gives the same catalogue. It is what the `ranker` preset is trained on and measured
with, and what a demonstration can rank. Brands are invented; nothing is real data.

A prompt is split the way `/v1/score` joins it, `query + item`::

    prompt = query_part(query) + item_part(item)     # next token: YES_LABEL or NO_LABEL
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import Literal

import numpy as np

Split = Literal["train", "test"]

YES_LABEL = " yes"
NO_LABEL = " no"
"""The labels; each is a single token of every tokenizer that this package makes."""

MAX_RELEVANCE = 3
ITEMS_PER_CATEGORY = 25
TEST_FRACTION = 0.1


@dataclass(frozen=True, slots=True)
class Category:
    """What shoppers call it (the first name is used in items), its materials and its uses."""

    names: tuple[str, str]
    materials: tuple[str, str, str]
    uses: tuple[str, str, str]


CATEGORIES = (
    Category(("running shoes", "joggers"), ("mesh", "knit", "leather"), ("trails", "races", "gym")),
    Category(("rain jacket", "raincoat"), ("nylon", "cotton", "rubber"), ("commuting", "hiking", "sailing")),
    Category(("backpack", "rucksack"), ("canvas", "leather", "nylon"), ("school", "travel", "hiking")),
    Category(("office chair", "desk seat"), ("mesh", "leather", "fabric"), ("gaming", "office", "study")),
    Category(("water bottle", "drinking flask"), ("steel", "glass", "plastic"), ("cycling", "gym", "office")),
    Category(("frying pan", "skillet"), ("iron", "steel", "ceramic"), ("camping", "searing", "baking")),
    Category(("headphones", "headset"), ("plastic", "leather", "aluminium"), ("gaming", "travel", "music")),
    Category(("keyboard", "typing board"), ("plastic", "aluminium", "wood"), ("gaming", "coding", "office")),
    Category(("tent", "camping shelter"), ("canvas", "nylon", "cotton"), ("festivals", "mountains", "families")),
    Category(("bicycle helmet", "cycle hat"), ("foam", "carbon", "plastic"), ("racing", "commuting", "children")),
    Category(("sunglasses", "shades"), ("wood", "titanium", "plastic"), ("driving", "sailing", "beach")),
    Category(("coffee maker", "espresso machine"), ("steel", "glass", "plastic"), ("camping", "office", "families")),
    Category(("blanket", "throw"), ("wool", "cotton", "fleece"), ("picnics", "winter", "babies")),
    Category(("pillow", "cushion"), ("down", "foam", "cotton"), ("travel", "sofa", "children")),
    Category(("bookshelf", "bookcase"), ("oak", "pine", "steel"), ("office", "children", "records")),
    Category(("toy train", "model railway"), ("wood", "plastic", "tin"), ("toddlers", "collectors", "gifts")),
)  # fmt: skip

NUM_ITEMS = ITEMS_PER_CATEGORY * len(CATEGORIES)

BRANDS = ("Alvora", "Brenik", "Castel", "Dunmore", "Elvard", "Fjora")
COLOURS = ("red", "blue", "green", "black", "white", "yellow")
SIZES = ("small", "medium", "large")

ITEM_PHRASES = (
    "{brand} {category} in {colour} {material}, {size}, for {use}.",
    "{colour} {category} by {brand}. Made of {material} for {use}. Size: {size}.",
    "{size} {category} from {brand}: {material}, {colour}, good for {use}.",
)

Attribute = Literal["brand", "colour", "material", "size", "use"]


@dataclass(frozen=True, slots=True)
class Item:
    """One product; `text` is its description, `category` the first name of its category."""

    text: str
    category: str
    attributes: Mapping[Attribute, str]


@dataclass(frozen=True, slots=True)
class Query:
    """What a shopper types, and what it asks for: a category and one or two attributes."""

    text: str
    category: str
    wanted: Mapping[Attribute, str]


@cache
def items() -> tuple[Item, ...]:
    """All `NUM_ITEMS` items, category by category."""
    rng = random.Random("catalogue items")
    return tuple(_item(c, rng) for c in CATEGORIES for _ in range(ITEMS_PER_CATEGORY))


@cache
def queries(split: Split) -> tuple[Query, ...]:
    """The queries of one split, in a fixed random order; no text is in both splits.

    Every word of the test queries occurs in training queries, but never in that combination.
    """
    everything = [query for category in CATEGORIES for query in _category_queries(category)]
    random.Random("catalogue queries").shuffle(everything)
    cut = round(TEST_FRACTION * len(everything))
    return tuple(everything[:cut] if split == "test" else everything[cut:])


def relevance(query: Query, item: Item) -> int:
    """How well `item` answers `query`, from 0 to `MAX_RELEVANCE`.

    0: another category. 1: the category, no wanted attribute. 2: some wanted attributes.
    3: everything that was asked for.
    """
    if item.category != query.category:
        return 0
    met = sum(item.attributes[name] == value for name, value in query.wanted.items())
    if met == len(query.wanted):
        return MAX_RELEVANCE
    return 2 if met else 1


def query_part(query: str) -> str:
    """The shared front of a prompt; `/v1/score` takes it as `query`."""
    return f"Query: {query}\n"


def item_part(item: str) -> str:
    """The end of a prompt, up to where a label follows; `/v1/score` takes it as an item."""
    return f"Item: {item}\nRelevant:"


def _item(category: Category, rng: random.Random) -> Item:
    attributes = {name: rng.choice(values) for name, values in _choices(category).items()}
    name = category.names[0]
    text = rng.choice(ITEM_PHRASES).format(category=name, **attributes)
    return Item(text, name, attributes)


def _category_queries(category: Category) -> Iterator[Query]:
    choices = _choices(category)
    pairs = [pair for size in (1, 2) for pair in combinations(choices, size)]
    for name, wanted_names in product(category.names, pairs):
        for values in product(*(choices[attribute] for attribute in wanted_names)):
            wanted = dict(zip(wanted_names, values, strict=True))
            yield Query(_query_text(name, wanted), category.names[0], wanted)


def _query_text(name: str, wanted: Mapping[Attribute, str]) -> str:
    """`large red wool blanket by Fjora for winter`, with the words that are wanted."""
    adjectives = [wanted[a] for a in ("size", "colour", "material") if a in wanted]
    tail = [f"by {wanted['brand']}"] if "brand" in wanted else []
    tail += [f"for {wanted['use']}"] if "use" in wanted else []
    return " ".join([*adjectives, name, *tail])


def _choices(category: Category) -> dict[Attribute, tuple[str, ...]]:
    return {
        "brand": BRANDS,
        "colour": COLOURS,
        "material": category.materials,
        "size": SIZES,
        "use": category.uses,
    }


def ndcg(relevance: Sequence[float], k: int) -> float:
    """Normalised discounted cumulative gain of the first `k` places, in [0, 1].

    Args:
        relevance: graded relevance (at least 0) of every candidate, in ranked order, best
            first. Candidates that were not placed must be in it too: the ideal order is
            taken over all of them.
        k: places that count, at least 1; more than there are candidates means all of them.

    ``DCG@k = sum_{i=1..k} (2^relevance_i - 1) / log2(i + 1)`` and ``NDCG@k = DCG@k / ideal
    DCG@k`` (Järvelin and Kekäläinen 2002, with the exponential gain of Burges et al. 2005).
    Where nothing is relevant, or there are no candidates, no order is better than another
    and the result is 0, as in scikit-learn.
    """
    assert k >= 1, f"NDCG needs at least one place, got k={k}"
    ideal = _dcg(sorted(relevance, reverse=True)[:k])
    return _dcg(relevance[:k]) / ideal if ideal else 0.0


def _dcg(relevance: Sequence[float]) -> float:
    gains = np.exp2(np.asarray(relevance, dtype=np.float64)) - 1
    return float(np.sum(gains / np.log2(np.arange(2, len(gains) + 2))))
