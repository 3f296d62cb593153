"""An SGLang plugin that makes packed log-probs wrong in every process, as a broken kernel would."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

OFF_BY = 0.5
"""Added to every value that a packed forward reads."""

KV_SLOTS = 4_096
FLAGS = ("--enable-prefill-only", "--max-total-tokens", str(KV_SLOTS))
UNUSED_MEMORY = {"kv_slots": KV_SLOTS, "request_rows": 2_048, "kv_slots_protected": 0}
"""What the pools of a server with these flags can give while nothing is held."""

_DISTRIBUTION = {
    "METADATA": "Metadata-Version: 2.1\nName: wrong-readout\nVersion: 1\n",
    "entry_points.txt": f"[sglang.srt.plugins]\nwrong_readout = {__name__}:register\n",
}


def install(directory: Path) -> dict[str, str]:
    """Install the plugin into a directory; return the environment of a server that loads it."""
    info = directory / "wrong_readout-1.dist-info"
    info.mkdir(parents=True)
    for name, text in _DISTRIBUTION.items():
        (info / name).write_text(text)
    root = Path(__file__).parents[3]
    return {"PYTHONPATH": os.pathsep.join(map(str, (directory, root, os.environ["PYTHONPATH"])))}


def register() -> None:
    """The plugin's entry point, which SGLang calls in each process."""
    from sglang_prefill_ext.forward.readers.labels import LabelReader

    read = LabelReader.read

    def read_wrong(self: LabelReader, *args: Any) -> Any:
        return read(self, *args) + OFF_BY

    LabelReader.read = read_wrong  # type: ignore[method-assign]
