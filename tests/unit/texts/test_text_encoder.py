from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from sglang_prefill_ext.config import PrefillOnlyConfig, Switch, TokenizerChoice
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.texts import choice, ways
from sglang_prefill_ext.texts.frame import with_ids
from sglang_prefill_ext.texts.libraries import TokenizerCopy
from sglang_prefill_ext.texts.text_encoder import SAMPLED, TextEncoder
from sglang_prefill_ext.texts.ways import Ways
from sglang_prefill_ext.wire import checks
from sglang_prefill_ext.wire.arrays import NO_INTS, FlatRows, Int32Array
from tests.unit.texts.made import json_of

PLAIN = PrefillOnlyConfig(tokenizer=TokenizerChoice.HUGGINGFACE)
ITEMS = [" yes", " no", "maybe"]


class Plain:
    """The plain way; records its calls, and gives other ids if the test says so."""

    def __init__(self, source: str) -> None:
        self._copy = TokenizerCopy(source)
        self.asked: list[list[str | tuple[str, str]]] = []
        self.more: list[int] = []

    def __call__(
        self, texts: Sequence[str | tuple[str, str]], *, continued: bool = False
    ) -> list[list[int]]:
        self.asked.append(list(texts))
        return [ids + self.more for ids in self._copy.encode(texts, continued=continued)]


def made(
    kind: str = "llama3", config: PrefillOnlyConfig = PLAIN, source: str | None = None
) -> tuple[TextEncoder, Plain, FrontendMetrics]:
    source = json_of(kind) if source is None else source
    plain, metrics = Plain(json_of(kind)), FrontendMetrics()
    encoder = TextEncoder(plain, source, config, metrics)
    assert encoder.wait_until_ready(60)
    plain.asked.clear()
    return encoder, plain, metrics


def whole(joined: tuple[Int32Array, FlatRows], item_first: bool) -> list[list[int]]:
    shared, rest = joined
    args = (NO_INTS, shared) if item_first else (shared, NO_INTS)
    return with_ids(rest, *args).tolist()


@pytest.mark.parametrize("kind", ["llama3", "wordpiece"])
@pytest.mark.parametrize("item_first", [False, True])
def test_joined_texts_have_the_ids_of_the_plain_way(kind: str, item_first: bool) -> None:
    encoder, plain, metrics = made(kind)
    query = ". Is this the word: " if item_first else "Is this the word: "
    texts = [item + query if item_first else query + item for item in ITEMS]
    for _ in range(3):
        joined = encoder.encode_joined(query, ITEMS, item_first=item_first)
        assert whole(joined, item_first) == plain(texts)
    assert len(joined[0])
    assert metrics.totals["spliced"] == 3
    assert plain.asked.count(texts) == 4  # the first one was a sample


def test_texts_have_the_ids_of_the_plain_way_with_and_without_special_tokens() -> None:
    encoder, plain, _ = made()
    for continued in (True, False):  # the first one is a sample
        assert encoder.encode(ITEMS, continued=continued) == plain(ITEMS, continued=continued)
    assert encoder.status()["encoder"] == "huggingface"
    assert encoder.encode([]) == []


def test_a_copy_that_is_there_is_not_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = TokenizerCopy(json_of("wordpiece"))
    monkeypatch.setattr(ways, "TokenizerCopy", None)
    encoder = TextEncoder(copy.encode, json_of("wordpiece"), PLAIN, FrontendMetrics(), copy=copy)
    assert encoder.wait_until_ready(60)
    assert encoder.status()["encoder"] == "huggingface"
    assert encoder.encode(ITEMS) == copy.encode(ITEMS)


def test_pairs_are_encoded_the_plain_way() -> None:
    encoder, plain, _ = made("wordpiece")
    pairs = [("the word", "of"), ("a", "b")]
    assert encoder.encode(pairs) == plain(pairs)
    assert plain.asked[0] == pairs


def test_some_calls_are_encoded_both_ways() -> None:
    encoder, plain, _ = made()
    for _ in range(2 * SAMPLED):
        encoder.encode(["one"])
    assert len(plain.asked) == 2


def test_calls_with_and_without_a_splice_are_checked_however_they_alternate() -> None:
    encoder, plain, _ = made()
    for _ in range(2 * SAMPLED):
        encoder.encode(["one"])
        encoder.encode_joined("a b c", ITEMS, item_first=False)
    assert sorted(map(len, plain.asked)) == [1, 1, len(ITEMS), len(ITEMS)]


def test_an_encoder_that_differs_is_not_used_any_more(caplog: pytest.LogCaptureFixture) -> None:
    encoder, plain, metrics = made()
    plain.more = [7]
    assert encoder.encode(["secret"])[0][-1] == 7
    assert encoder.encode(["secret"])[0][-1] == 7  # no sample
    assert metrics.totals["encoding_mismatches"] == 1
    assert encoder.status()["encoder"] == "plain"
    assert "differed while serving" in encoder.status()["why_plain"]
    assert "plain way from now on" in caplog.text
    assert "secret" not in caplog.text
    assert not len(encoder.encode_joined("a b c", ITEMS, item_first=False)[0])


def test_a_splice_that_differs_is_not_used_any_more(caplog: pytest.LogCaptureFixture) -> None:
    encoder, plain, metrics = made()
    plain.more = [7]
    joined = encoder.encode_joined("secret b c", ITEMS, item_first=False)
    assert all(row[-1] == 7 for row in whole(joined, False))
    assert metrics.totals["encoding_mismatches"] == 1
    assert encoder.status()["splice"] is False
    assert encoder.status()["why_no_splice"] == "differed while serving"
    assert "Prefix splice is off" in caplog.text
    assert "secret" not in caplog.text


def test_a_text_that_a_library_cannot_read_meets_the_plain_way() -> None:
    encoder, plain, metrics = made()
    for call in (
        lambda: encoder.encode(["\ud800"]),
        lambda: encoder.encode_joined("a b c", ["\ud800", "x"], item_first=False),
    ):
        with pytest.raises((UnicodeEncodeError, TypeError)):
            call()
    assert plain.asked[0] == ["\ud800"]
    assert encoder.status()["encoder"] == "huggingface"
    assert metrics.totals["encoding_failures"] == 3  # the second one joined, and then whole


def test_an_encoder_that_differed_while_libraries_were_judged_stays_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The difference is found after the check of its trust and before another one is chosen."""
    source = json_of("llama3")
    copy = TokenizerCopy(source)
    found = Ways(copy.encode, source, FrontendMetrics(), copy)

    class Best:
        comparisons, speeds = {}, {}

        def __init__(self, *_: object) -> None:
            pass

        @property
        def best(self) -> object:
            giving_up = threading.Thread(target=found.distrust_encoder, args=(copy,))
            giving_up.start()
            giving_up.join(0.05)  # it waits, unless it is let
            self.giving_up = giving_up
            return copy

    monkeypatch.setattr(ways, "Choice", Best)
    found.find(PLAIN, Path())
    assert isinstance(found.choice, Best)
    found.choice.giving_up.join(60)
    assert found.encoder is None


def test_a_difference_stays_the_reason_if_judging_libraries_fails_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = json_of("llama3")
    copy = TokenizerCopy(source)
    found = Ways(copy.encode, source, FrontendMetrics(), copy)

    def failing(*_: object) -> None:
        found.distrust_encoder(copy)
        raise RuntimeError("no memory")

    monkeypatch.setattr(ways, "Choice", failing)
    found.find(PLAIN, Path())
    reason = "huggingface differed while serving"
    assert (found.why_plain, found.why_no_splice) == (reason, reason)


def test_nothing_is_spliced_by_an_encoder_that_differed_while_the_splice_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go = threading.Event(), threading.Event()

    def checked(*_: object) -> str:
        begun.set()
        assert go.wait(60)
        return ""

    monkeypatch.setattr(ways, "splice_difference", checked)
    plain = Plain(json_of("llama3"))
    encoder = TextEncoder(plain, json_of("llama3"), PLAIN, FrontendMetrics())
    assert begun.wait(60)
    plain.more = [7]
    assert encoder.encode(["one"])[0][-1] == 7
    go.set()
    assert encoder.wait_until_ready(60)
    assert encoder.encode(["one"])[0][-1] == 7
    assert (encoder.status()["encoder"], encoder.status()["splice"]) == ("plain", False)


@pytest.mark.parametrize("item_first", [False, True])
def test_a_sample_repeats_the_shared_text_a_few_times(item_first: bool) -> None:
    encoder, plain, _ = made()
    query, items = "a b c. " * 3000, [f" {number}?" for number in range(100)]
    shared, rest = encoder.encode_joined(query, items, item_first=item_first)
    assert (len(shared) > 3000, len(rest)) == (True, 100)
    (asked,) = plain.asked
    assert len(asked) == 3


def test_a_sample_of_many_texts_has_a_few_of_them() -> None:
    encoder, plain, _ = made()
    texts = [f"{number} a b. " * 2500 for number in range(10)]
    assert len(encoder.encode(texts)) == 10
    (asked,) = plain.asked
    assert asked == texts[:3]


@pytest.mark.parametrize("joined", [False, True])
def test_a_call_with_a_huge_text_is_not_checked_but_the_next_one_is(joined: bool) -> None:
    encoder, plain, _ = made()

    def encode(text: str) -> None:
        if joined:
            encoder.encode_joined(text, ["1?", "2?"], item_first=False)
        else:
            encoder.encode([text])

    encode("a b. " * 100_000)
    assert plain.asked == []
    encode("a b. ")
    assert len(plain.asked) == 1


def test_all_texts_of_a_sample_that_differs_are_encoded_the_plain_way() -> None:
    encoder, plain, _ = made()
    plain.more = [7]
    texts = [f"{number} a b. " * 2500 for number in range(5)]
    assert [row[-1] for row in encoder.encode(texts)] == [7] * 5


LONG = "x" * 1000


@pytest.mark.parametrize(
    ("query", "item_first", "repeated"),
    [
        (LONG, False, True),
        (LONG, True, True),
        (f"a b {LONG}", False, True),
        (f"a b {LONG}", True, False),
        (f"{LONG} a b", False, False),
        (f"{LONG} a b", True, True),
    ],
)
def test_a_long_text_without_a_cut_is_not_repeated_for_ever(
    monkeypatch: pytest.MonkeyPatch, query: str, item_first: bool, repeated: bool
) -> None:
    monkeypatch.setattr(checks, "MOST_REPEATED_CHARACTERS", 20_000)
    encoder, plain, metrics = made()
    items = [str(number) for number in range(30)]
    if not repeated:
        assert len(encoder.encode_joined(query, items, item_first=item_first)[0])
        return
    with pytest.raises(RequestError, match="would be repeated for 30 items"):
        encoder.encode_joined(query, items, item_first=item_first)
    assert (plain.asked, metrics.totals["encoding_failures"]) == ([], 0)


def test_splicing_can_be_turned_off() -> None:
    config = PrefillOnlyConfig(tokenizer=TokenizerChoice.HUGGINGFACE, prefix_splice=Switch.OFF)
    encoder, plain, metrics = made(config=config)
    joined = encoder.encode_joined("a b c", ITEMS, item_first=False)
    assert whole(joined, False) == plain(["a b c" + item for item in ITEMS])
    assert (encoder.status()["why_no_splice"], metrics.totals["spliced"]) == ("turned off", 0)
    assert metrics.totals["encoding_failures"] == 0


TEXT, OTHER_TEXT = ({"Sequence": {"id": each, "type_id": 0}} for each in "AB")
TWICE = {
    "type": "TemplateProcessing",
    "single": [TEXT, TEXT],
    "pair": [TEXT, OTHER_TEXT],
    "special_tokens": {},
}
"""A post-processor that repeats a single text."""


def changed(kind: str, **parts: object) -> str:
    return json.dumps(json.loads(json_of(kind)) | parts)


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("", {"why_plain": "no fast tokenizer"}),
        (json_of("qwen"), {"why_plain": "a copy of the tokenizer differs from it"}),
        (
            changed("llama3", normalizer={"type": "NFD"}),
            {"why_plain": "a copy of the tokenizer differs from it"},
        ),
        (
            changed("llama3", post_processor=TWICE),
            {"why_plain": "post-processor TemplateProcessing"},
        ),
    ],
)
def test_without_a_faithful_copy_all_is_plain(
    source: str, status: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    encoder, plain, _ = made(source=source)
    assert status.items() <= encoder.status().items()
    assert (encoder.status()["encoder"], encoder.status()["splice"]) == ("plain", False)
    assert "failed" not in caplog.text
    for continued in (False, True):
        assert encoder.encode(["one"], continued=continued) == plain(["one"], continued=continued)


def test_a_tokenizer_that_cannot_be_read_is_told_on_the_status_page() -> None:
    status = made(source="{}")[0].status()
    assert (status["encoder"], status["why_plain"]) == ("plain", "KeyError: 'model'")
    assert status["why_no_splice"] == status["why_plain"]


def test_without_a_proof_nothing_is_cut() -> None:
    source = json.loads(json_of("unigram"))
    source["pre_tokenizer"]["split"] = False
    text = json.dumps(source)
    encoder = TextEncoder(TokenizerCopy(text).encode, text, PLAIN, FrontendMetrics())
    assert encoder.wait_until_ready(60)
    assert encoder.status()["encoder"] == "huggingface"
    assert encoder.status()["why_no_splice"] == "not proven: Unigram of undivided texts"


def test_a_wrong_proof_is_found_at_load(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = json.loads(json_of("gpt2"))
    source["pre_tokenizer"]["add_prefix_space"] = True  # every part but the first gets a space
    source["pre_tokenizer"]["use_regex"] = False
    monkeypatch.setattr(ways, "unproven", lambda settings: "")
    text, metrics = json.dumps(source), FrontendMetrics()
    encoder = TextEncoder(TokenizerCopy(text).encode, text, PLAIN, metrics)
    assert encoder.wait_until_ready(60)
    assert encoder.status()["why_no_splice"].startswith("differs on '")
    assert metrics.totals["encoding_mismatches"] == 1
    assert "Prefix splice is off" in caplog.text


def test_libraries_are_compared_beside_the_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    class Waiting(choice.Choice):
        def __init__(self, *args: object) -> None:
            assert go.wait(30)
            super().__init__(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(choice, "GATE_TEXTS", 500)
    monkeypatch.setattr(ways, "Choice", Waiting)
    monkeypatch.setattr(
        choice,
        "us_per_text",
        lambda encoder: {"huggingface": 3.0, "fastokens": 1.0}[encoder.name],
    )
    source = json_of("llama3")
    plain = TokenizerCopy(source)
    encoder = TextEncoder(plain.encode, source, PrefillOnlyConfig(), FrontendMetrics(), tmp_path)
    assert encoder.status()["ready"] is False
    assert encoder.encode(["one two"]) == plain.encode(["one two"])
    go.set()
    assert encoder.wait_until_ready(60)
    status = encoder.status()
    assert (status["ready"], status["encoder"]) == (True, "fastokens")
    assert status["libraries"]["fastokens"]["texts"] == 500
    assert encoder.encode(["one two"]) == plain.encode(["one two"])


def test_a_failure_while_judging_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*args: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(ways, "Choice", failing)
    source = json_of("llama3")
    args = (TokenizerCopy(source).encode, source, PrefillOnlyConfig(), FrontendMetrics(), tmp_path)
    encoder = TextEncoder(*args)
    assert encoder.wait_until_ready(60)
    assert (encoder.status()["ready"], encoder.status()["encoder"]) == (True, "huggingface")
    assert "Looking for a faster way to encode texts failed" in caplog.text
