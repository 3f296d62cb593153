"""Make a model directory once; a marker in it tells what it holds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from sglang_prefill_ext import __version__
from sglang_prefill_ext.errors import ModelSpecError
from sglang_prefill_ext.modelmaker.presets import PRESETS, VOCABULARY, Preset

MARKER = "prefill-model.json"


@dataclass(frozen=True, slots=True)
class _Origin:
    """What determines the files of a model directory."""

    preset: str
    seed: int
    version: str = __version__


def make_model(
    preset: str,
    directory: Path,
    *,
    seed: int = 0,
    force: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Make a model in Hugging Face format, offline; the same bytes for the same preset and seed.

    A directory that holds this very model is returned as it is. It appears under its name only
    when it is complete, so an interrupted call leaves no half model behind.

    Args:
        preset: a name of `PRESETS`.
        directory: where to put it; made if missing.
        force: make it anew, also over a model of another preset or seed.
        progress: called with a line of text as the work goes on.

    Returns:
        `directory`.

    Raises:
        ModelSpecError: unknown preset, or `directory` holds something else.
    """
    if preset not in PRESETS:
        known = ", ".join(PRESETS)
        raise ModelSpecError(f"preset: {preset!r} is unknown. Choose one of: {known}.")
    origin = _Origin(preset, seed)
    if not force and _holds(directory, origin):
        return directory
    _refuse_foreign(directory, force=force)
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _write(PRESETS[preset], partial, seed, progress or _silent)
    (partial / MARKER).write_text(json.dumps(asdict(origin), indent=2) + "\n")
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)
    return directory


def _holds(directory: Path, origin: _Origin) -> bool:
    marker = directory / MARKER
    return marker.is_file() and json.loads(marker.read_text()) == asdict(origin)


def _refuse_foreign(directory: Path, *, force: bool) -> None:
    """Refuse to overwrite what was not made here, or, without `force`, what was made otherwise."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise ModelSpecError(f"directory: {directory} is a file. Name a directory.")
    if (directory / MARKER).is_file():
        found = json.loads((directory / MARKER).read_text())
        if force or found.get("version") != __version__:
            return
        raise ModelSpecError(
            f"directory: {directory} holds the preset {found.get('preset')!r} with seed "
            f"{found.get('seed')}. Use --force to replace it, or another directory."
        )
    if any(directory.iterdir()):
        raise ModelSpecError(
            f"directory: {directory} is not empty and was not made by this command. "
            "Name another directory."
        )


def _write(preset: Preset, directory: Path, seed: int, progress: Callable[[str], None]) -> None:
    # Imported late: transformers takes seconds, and a model that is there already needs none.
    from sglang_prefill_ext.modelmaker import ranker
    from sglang_prefill_ext.modelmaker.tokenizer import train_tokenizer
    from sglang_prefill_ext.modelmaker.weights import build_model, randomise, save_model

    progress("training the tokenizer")
    tokenizer = train_tokenizer(VOCABULARY, preset.shape["max_position_embeddings"])
    tokenizer.save_pretrained(directory)
    progress("initialising the weights")
    model = build_model(preset, tokenizer, seed)
    randomise(model, seed)
    if preset.trained:
        ranker.train(model, tokenizer, seed, progress=progress)
    progress("saving")
    save_model(model, directory)


def _silent(_line: str) -> None:
    pass
