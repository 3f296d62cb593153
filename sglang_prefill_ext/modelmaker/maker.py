"""`make_model`: write a preset as a Hugging Face model directory, once."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from sglang_prefill_ext import __version__
from sglang_prefill_ext.errors import ModelSpecError
from sglang_prefill_ext.modelmaker.preset import CONTEXT_LENGTH, VOCABULARY, Preset
from sglang_prefill_ext.modelmaker.presets import PRESETS

MARKER = ".sglang-prefill-model.json"
"""Says which preset, seed and version a directory holds; written last."""


_SOURCES = sorted(Path(__file__).parent.glob("*.py"))
# On import: a file that is edited while this process runs is not what this process builds from.
RECIPE = hashlib.sha256(b"".join(each.read_bytes() for each in _SOURCES)).hexdigest()[:16]
"""With any change to how models are made, every model made before is out of date."""


def make_model(
    preset: str,
    directory: str | Path,
    *,
    seed: int = 0,
    force: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write the model `preset` to `directory` and return the directory.

    Works offline. The same preset and seed give the same bytes on the same machine and
    versions. The directory loads with `AutoModelForCausalLM` (or the class of what it is),
    `AutoTokenizer` and SGLang.

    A directory that already holds this preset, seed and version of the recipe is returned
    at once. One made with others is replaced. A model is built next to its place and moved
    there when complete, so an interrupted call leaves nothing that looks like a model.

    Args:
        preset: a name from `PRESETS`.
        directory: where to; it is created, and its parents too.
        seed: of the random weights, from 0 to 2**63 - 1.
        force: build again what is already there.
        progress: is told what is being done, one line at a time.

    Raises:
        ModelSpecError: unknown preset, seed out of range, or `directory` is a file or holds
            files that this function did not write.
    """
    directory = Path(directory).expanduser().resolve()
    if preset not in PRESETS:
        raise ModelSpecError(f"unknown preset {preset!r}; choose one of {', '.join(PRESETS)}")
    if not 0 <= seed < 2**63:
        raise ModelSpecError(f"seed is {seed}; give a whole number from 0 to 2**63 - 1")
    marker = {"preset": preset, "seed": seed, "version": __version__, "recipe": RECIPE}
    if _holds(directory, marker) and not force:
        return directory
    _refuse_foreign(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as scratch:
        built = Path(scratch) / "model"
        _build(PRESETS[preset], built, seed, progress)
        (built / MARKER).write_text(json.dumps(marker, indent=2) + "\n")
        if directory.exists():
            shutil.rmtree(directory)
        built.rename(directory)
    return directory


def _build(preset: Preset, directory: Path, seed: int, progress: Callable[[str], None]) -> None:
    # Here, because they import torch and transformers: seconds that a model which is already
    # there, and a refusal, do not need.
    from sglang_prefill_ext.modelmaker import ranker, weights
    from sglang_prefill_ext.modelmaker.tokenizer import ANSWERS, rendered, train_tokenizer

    progress(f"training a tokenizer of {VOCABULARY} tokens")
    tokenizer = train_tokenizer(
        VOCABULARY,
        CONTEXT_LENGTH,
        reranker=preset.reranker,
        token_types=preset.shape["type_vocab_size"] if preset.encoder else 0,
        images=preset.images,
    )
    progress("drawing random weights")
    model = weights.build_model(preset, tokenizer, seed)
    if preset.weights != "default":
        weights.randomise(model, seed)
    if preset.reranker and preset.images:  # of which SGLang reads likely answers only
        weights.favour(
            model, tokenizer.convert_tokens_to_ids(ANSWERS), tokenizer.encode(rendered(tokenizer))
        )
    if preset.weights == "trained":
        ranker.train(model, tokenizer, seed, progress=progress)
    progress(f"writing {model.num_parameters():,} parameters")
    weights.save_model(model, preset, directory)
    tokenizer.save_pretrained(directory, save_jinja_files=False)
    if preset.images:
        from sglang_prefill_ext.modelmaker.image_processor import save_processor

        save_processor(preset.model_type, model.config, tokenizer, directory)


def _holds(directory: Path, marker: Mapping[str, object]) -> bool:
    try:
        found = json.loads((directory / MARKER).read_text())
    except (OSError, ValueError):
        return False
    return found == marker and (directory / "model.safetensors").is_file()


def _refuse_foreign(directory: Path) -> None:
    """Only an empty place, or a directory that `make_model` wrote, may be replaced."""
    if not directory.exists() or (directory / MARKER).is_file():
        return
    if not directory.is_dir() or any(directory.iterdir()):
        raise ModelSpecError(
            f"directory {str(directory)!r} holds something that make-model did not write "
            f"(it has no {MARKER}); name a new or empty directory, or remove it first"
        )
