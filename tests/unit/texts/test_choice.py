"""The choice among the real libraries, on tokenizers of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from sglang_prefill_ext.config import TokenizerChoice
from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.texts import choice, libraries, sample_texts
from sglang_prefill_ext.texts.choice import Choice
from sglang_prefill_ext.texts.comparison import Comparison
from sglang_prefill_ext.texts.comparison_process import NotComparedError, compare_here
from sglang_prefill_ext.texts.libraries import FastokensEncoder, TokenizerCopy
from sglang_prefill_ext.wire.arrays import FlatRows
from tests.unit.texts.made import PROVEN, json_of

TEXTS = 3_000


@pytest.fixture(autouse=True)
def _few_texts_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "GATE_TEXTS", TEXTS)
    monkeypatch.setattr(choice, "compare_in_child", compare_here)


def chosen(kind: str, directory: Path, wanted: TokenizerChoice = TokenizerChoice.AUTO) -> Choice:
    source = json_of(kind)
    return Choice(wanted, source, TokenizerCopy(source), directory)


@pytest.mark.parametrize("kind", PROVEN)
def test_only_what_equals_hugging_face_is_ever_chosen(kind: str, tmp_path: Path) -> None:
    texts = ["one", "Two words, 漢字!", " <s>x</s> "]
    wanted = TokenizerCopy(json_of(kind)).encode(texts, continued=True)
    for wish in TokenizerChoice:
        made = chosen(kind, tmp_path, wish)
        passed = {name for name, each in made.comparisons.items() if not each.difference}
        assert made.best.name in {"huggingface", *passed}
        assert made.speeds.keys() == {"huggingface", *passed}
        assert made.best.rows(texts).tolist() == wanted


def test_the_faster_one_is_chosen_of_those_whose_memory_has_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for us, best in (
        ({"huggingface": 2.0, "fastokens": 1.0}, "fastokens"),
        ({"huggingface": 1.0, "fastokens": 2.0}, "huggingface"),
    ):
        monkeypatch.setattr(choice, "us_per_text", lambda encoder, us=us: us[encoder.name])
        made = chosen("gpt2", tmp_path)
        assert (made.comparisons.keys(), made.best.name) == ({"fastokens"}, best)


def test_both_libraries_equal_hugging_face_on_byte_level_tokenizers(tmp_path: Path) -> None:
    for kind in ("gpt2", "llama3", "qwen"):
        for library in libraries.LIBRARIES:
            (comparison,) = chosen(kind, tmp_path, library).comparisons.values()
            assert (kind, library, comparison.difference) == (kind, library, "")
            assert comparison.texts == TEXTS


def test_a_library_that_was_asked_for_is_used_however_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "us_per_text", lambda encoder: 1.0)
    assert chosen("gpt2", tmp_path).best.name == "huggingface"
    for wanted in libraries.LIBRARIES:
        made = chosen("gpt2", tmp_path, wanted)
        assert made.best.name == wanted
        assert made.comparisons.keys() == {str(wanted)}
    assert chosen("gpt2", tmp_path, TokenizerChoice.HUGGINGFACE).comparisons == {}


class _Wrong(FastokensEncoder):
    def rows(self, texts: Sequence[str]) -> FlatRows:
        rows = super().rows(texts)
        return FlatRows(np.maximum(rows.values, 5), rows.counts)


def test_a_library_that_differs_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(libraries, "FastokensEncoder", _Wrong)
    made = chosen("gpt2", tmp_path, TokenizerChoice.FASTOKENS)
    assert made.best.name == "huggingface"
    assert made.comparisons["fastokens"].difference
    assert "fastokens is not used" in caplog.text


def test_a_library_without_a_verdict_is_not_used_and_judged_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(library: TokenizerChoice, json: str, count: int) -> Comparison:
        raise NotComparedError("killed")

    args = (TokenizerChoice.FASTOKENS, json_of("gpt2"), TokenizerCopy(json_of("gpt2")), tmp_path)
    monkeypatch.setattr(choice, "compare_in_child", crash)
    made = Choice(*args)
    assert (made.best.name, made.comparisons["fastokens"].difference) == (
        "huggingface",
        "not compared: killed",
    )
    monkeypatch.setattr(choice, "compare_in_child", compare_here)
    assert Choice(*args).best.name == "fastokens"


@pytest.mark.parametrize(
    ("module", "name", "other"),
    [
        (choice, "processor", lambda: "another"),
        (choice, "version", lambda package: f"another {package}"),
        (choice, "GATE_TEXTS", TEXTS + 1),
        (sample_texts, "EDITION", "another"),
    ],
)
def test_a_verdict_of_another_processor_version_or_sample_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, other: object
) -> None:
    judged = list[str]()

    def refuse(library: TokenizerChoice, json: str, count: int) -> Comparison:
        judged.append(str(library))
        return Comparison("no")

    monkeypatch.setattr(choice, "compare_in_child", refuse)
    for _ in range(2):
        chosen("gpt2", tmp_path, TokenizerChoice.FASTOKENS)
    assert judged == ["fastokens"]
    monkeypatch.setattr(module, name, other)
    chosen("gpt2", tmp_path, TokenizerChoice.FASTOKENS)
    assert judged == ["fastokens"] * 2


@pytest.mark.parametrize("is_directory", [False, True])
def test_a_library_that_is_missing_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, is_directory: bool
) -> None:
    libraries.require_installed(TokenizerChoice.FASTOKENS)
    found = ModuleSpec("directory", None) if is_directory else None
    monkeypatch.setattr(libraries, "find_spec", lambda name: found)
    with pytest.raises(ConfigError, match=r"sglang-prefill-ext\[gigatoken\]"):
        libraries.require_installed(TokenizerChoice.GIGATOKEN)
    libraries.require_installed(TokenizerChoice.AUTO)
    libraries.require_installed(TokenizerChoice.HUGGINGFACE)
    assert libraries.candidates(TokenizerChoice.AUTO) == []
