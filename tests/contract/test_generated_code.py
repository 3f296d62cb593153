from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROTO = "sglang_prefill_ext/grpc_frontend/prefill.proto"
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


def test_the_code_is_that_of_the_definition(tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    compiler = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=."]
    subprocess.run([*compiler, *outputs, PROTO], cwd=ROOT, check=True)
    for suffix in SUFFIXES:
        name = PROTO.removesuffix(".proto") + suffix
        assert (tmp_path / name).read_text() == (ROOT / name).read_text()


def test_the_dependencies_are_as_new_as_the_code_asks_for() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    name = PROTO.removesuffix(".proto")
    protobuf = re.search(r"Protobuf Python Version: (\S+)", (ROOT / f"{name}_pb2.py").read_text())
    grpc = re.search(
        r"GRPC_GENERATED_VERSION = '(\S+)'", (ROOT / f"{name}_pb2_grpc.py").read_text()
    )
    assert protobuf
    assert grpc
    assert {f"protobuf>={protobuf[1]}", f"grpcio>={grpc[1]}"} <= set(dependencies)
