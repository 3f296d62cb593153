from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tools.proto import PROTO, generate

ROOT = Path(__file__).parents[2]
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_code_is_that_of_the_definition(tmp_path: Path, suffix: str) -> None:
    generate(tmp_path)
    name = PROTO.removesuffix(".proto") + suffix
    assert (tmp_path / name).read_text() == (ROOT / name).read_text()


def test_a_broken_definition_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.proto.PROTO", "missing.proto")
    with pytest.raises(RuntimeError, match="protoc ended with"):
        generate(tmp_path)


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
