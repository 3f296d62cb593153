"""The text that tokenizers are trained on: the catalogue, made-up words, code, other scripts."""

import random
from collections.abc import Iterator

from sglang_prefill_ext.modelmaker import catalogue

_ONSETS = "b bl br c ch d dr f fl g gr h j k l m n p pl pr qu r s sh st t th tr v w z".split()
_VOWELS = "a ai au e ea ee i ie o oa oo ou u y".split()
_CODAS = ["", *"ck d f l ll m n nd ng nt p r rd rn s ss st t x".split()]
_PSEUDO_LINES = 3_000
_WORDS_PER_LINE = 8

_OTHER_TEXT = (
    "def score(query, items):\n    return [model(query + item) for item in items]\n",
    'for (int i = 0; i < n; ++i) { total += values[i] * 0.5; }\n{"key": [1, 2.5, null, true]}\n',
    "SELECT name, price FROM items WHERE stock > 10 ORDER BY price DESC;\n",
    "Schöne Grüße aus Köln, à bientôt, mañana será otro día, dziękuję bardzo, çok güzel.",
    "Доброе утро, как дела? Καλημέρα κόσμε. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया. สวัสดีชาวโลก",
    "今天天气很好。機器學習模型。おはようございます、世界。안녕하세요 세계.",
    "½ ÷ ∑ ∞ ≤ → € £ … “quoted” — 🙂 🚀 👩‍🔬 🇪🇺 👍🏽",
)


def lines() -> Iterator[str]:
    """The same lines on every call; enough distinct words for tens of thousands of merges.

    The catalogue comes with all its words many times over, so that a byte-pair trainer makes
    each of them, and both labels, a single token before it turns to the made-up words.
    """
    for query in catalogue.queries("train"):
        yield f"{catalogue.query_part(query.text)}Is it relevant? yes or no"
    for item in catalogue.items():
        for label in (catalogue.YES_LABEL, catalogue.NO_LABEL):
            yield catalogue.item_part(item.text) + label
    yield from _OTHER_TEXT
    rng = random.Random("pseudo words")
    for _ in range(_PSEUDO_LINES):
        yield " ".join(_pseudo_word(rng) for _ in range(_WORDS_PER_LINE))


def _pseudo_word(rng: random.Random) -> str:
    syllables = rng.randint(1, 3)
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables)
    )
