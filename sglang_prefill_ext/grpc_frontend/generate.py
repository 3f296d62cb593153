"""Generates the Python code of `prefill.proto`.

``python -m sglang_prefill_ext.grpc_frontend.generate`` renews it in the source tree.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

PROTO = "sglang_prefill_ext/grpc_frontend/prefill.proto"
_ROOT = Path(__file__).parents[2]


def generate(directory: Path) -> None:
    """Write the generated modules below `directory`.

    Raises:
        RuntimeError: the compiler refuses the definition.
    """
    from grpc_tools import protoc  # installed for development only

    status = protoc.main(
        [
            "protoc",
            f"--proto_path={_ROOT}",
            f"--proto_path={files('grpc_tools') / '_proto'}",
            f"--python_out={directory}",
            f"--pyi_out={directory}",
            f"--grpc_python_out={directory}",
            PROTO,
        ]
    )
    if status:
        raise RuntimeError(f"protoc ended with {status}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT)
