import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sglang_prefill_ext.errors import ModelSpecError
from sglang_prefill_ext.modelmaker import PRESETS, make_model, maker

FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    maker.MARKER,
}


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished model; tests that change a directory make their own."""
    return make_model("micro", tmp_path_factory.mktemp("models") / "deep" / "micro")


@pytest.fixture
def no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("nothing should be built")

    monkeypatch.setattr(maker, "_build", refuse)


@pytest.fixture
def quick_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for minutes of work: the file that makes a directory a model."""

    def build(_preset: Any, directory: Path, seed: int, _progress: Any) -> None:
        directory.mkdir()
        (directory / "model.safetensors").write_text(f"seed {seed}")

    monkeypatch.setattr(maker, "_build", build)


def test_writes_a_complete_model(micro: Path) -> None:
    assert {path.name for path in micro.iterdir()} == FILES
    assert [path.name for path in micro.parent.iterdir()] == ["micro"]


def test_loads_without_a_network(micro: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    tokenizer = AutoTokenizer.from_pretrained(micro)
    model = AutoModelForCausalLM.from_pretrained(micro)
    assert tokenizer.is_fast
    assert tokenizer.chat_template
    assert model.config.vocab_size == len(tokenizer) == tokenizer.vocab_size == 8_000
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.config.pad_token_id == tokenizer.pad_token_id


def test_same_preset_and_seed_give_the_same_bytes(micro: Path, tmp_path: Path) -> None:
    again = make_model("micro", tmp_path / "again")
    for name in FILES:
        assert (again / name).read_bytes() == (micro / name).read_bytes(), name


@pytest.mark.usefixtures("no_build")
def test_finished_model_is_returned_at_once(micro: Path) -> None:
    assert make_model("micro", micro) == make_model("micro", str(micro)) == micro


@pytest.mark.usefixtures("quick_build")
def test_another_seed_or_force_builds_again(tmp_path: Path) -> None:
    directory = make_model("micro", tmp_path / "model")
    weights = directory / "model.safetensors"
    make_model("micro", directory, seed=7)
    assert weights.read_text() == "seed 7"
    weights.write_text("changed")
    make_model("micro", directory, seed=7)
    assert weights.read_text() == "changed"
    make_model("micro", directory, seed=7, force=True)
    assert weights.read_text() == "seed 7"


@pytest.mark.usefixtures("quick_build")
@pytest.mark.parametrize("damage", ["missing weights", "unreadable marker", "version", "recipe"])
def test_damaged_or_outdated_model_is_built_again(tmp_path: Path, damage: str) -> None:
    directory = make_model("micro", tmp_path / "model")
    marker = directory / maker.MARKER
    match damage:
        case "missing weights":
            (directory / "model.safetensors").unlink()
        case "unreadable marker":
            marker.write_text("{")
        case _:
            marker.write_text(json.dumps(json.loads(marker.read_text()) | {damage: "other"}))
    before = marker.read_text()
    make_model("micro", directory)
    assert (directory / "model.safetensors").read_text() == "seed 0"
    assert json.loads(marker.read_text())["preset"] == "micro"
    assert damage == "missing weights" or marker.read_text() != before


def test_interrupted_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_preset: Any, directory: Path, *_: Any) -> None:
        directory.mkdir()
        (directory / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(maker, "_build", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_model("micro", tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_build")
@pytest.mark.parametrize("force", [False, True])
def test_foreign_directory_is_never_touched(tmp_path: Path, force: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ModelSpecError, match=r"directory .*name a new or empty directory"):
        make_model("micro", tmp_path, force=force)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.usefixtures("no_build")
def test_a_file_is_not_a_directory(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("")
    with pytest.raises(ModelSpecError, match="name a new or empty directory"):
        make_model("micro", tmp_path / "model")


@pytest.mark.usefixtures("quick_build")
def test_empty_directory_is_used(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert (make_model("micro", tmp_path / "model") / "model.safetensors").is_file()


@pytest.mark.usefixtures("no_build")
def test_unknown_preset_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelSpecError, match=r"'gpt-7'.*micro.*ranker"):
        make_model("gpt-7", tmp_path / "model")


@pytest.mark.usefixtures("no_build")
@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seed_out_of_range(tmp_path: Path, seed: int) -> None:
    with pytest.raises(ModelSpecError, match=f"seed is {seed}"):
        make_model("micro", tmp_path / "model", seed=seed)


def test_default_weights_keep_the_dtype_and_the_narrow_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(PRESETS["micro"], dtype="bfloat16", weights="default")
    monkeypatch.setattr(maker, "PRESETS", {"small": small})
    model = AutoModelForCausalLM.from_pretrained(make_model("small", tmp_path / "model"))
    assert model.dtype == torch.bfloat16
    assert model.lm_head.weight.float().std().item() == pytest.approx(0.02, rel=0.05)


def test_progress_is_told(tmp_path: Path) -> None:
    lines: list[str] = []
    make_model("micro", tmp_path / "model", progress=lines.append)
    assert any("tokenizer" in line for line in lines)
    assert any("parameters" in line for line in lines)
