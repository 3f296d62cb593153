# Every target sets up what it needs; `make setup` takes seconds when nothing changed.
VENV   := .venv
# The first of these that SGLang has wheels for.
PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11,$(shell \
  $(name) -c 'import sys; print("$(name)" if (3, 11) <= sys.version_info < (3, 14) else "")' 2>/dev/null)))
NONE   := no Python 3.11, 3.12 or 3.13 was found; install one, or name it: make PYTHON=...
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -q
# Byte code once at install: a server imports some 5,000 modules in each of its processes.
UV     := $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python
# `lowest-direct`: the oldest packages that pyproject.toml allows; give VENV as well.
RESOLUTION ?= highest
STAMP  := $(VENV)/.installed
# Whole files on each worker, so that a server serves one of them; each worker needs about 6 GiB.
# Files run in the order of their names: integration tests first, then many short unit tests, which
# keep both workers busy until the end.
WORKERS ?= 2
SHARE   := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Test processes that share the GPU. Most of the time goes to the compiler, with a core per process.
COMPILERS ?= 8
JUDGES := .judges
WHEELS ?= dist

.PHONY: setup check test test-quick test-gpu demo bench bench-gpu judges doctor wheel proto lock clean

setup: $(STAMP)

$(BIN)/uv:
	$(or $(PYTHON),$(error $(NONE))) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv

$(STAMP): pyproject.toml | $(BIN)/uv
	$(UV) --resolution $(RESOLUTION) --editable '.[dev]'
	@touch $@

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(PYTEST) $(SHARE) tests/contract

# All tests that `check` does not run. Both parts run, even if the first one fails.
# Other load on the machine can disturb real servers, so failed tests run once more, alone and on new
# servers. The first that fails again ends the part.
# Tests of kernels need no servers, so a worker that is done takes tests from the others.
SERVED := tests/integration tests/unit
test: setup
	@status=0; export OMP_NUM_THREADS=1; \
	$(PYTEST) --durations 20 $(SHARE) $(SERVED) || status=$$?; \
	if [ $$status = 1 ]; then $(PYTEST) --last-failed -x $(SERVED) && status=0; fi; \
	TRITON_INTERPRET=1 $(PYTEST) -n $(WORKERS) --dist worksteal tests/kernels || status=$$?; \
	exit $$status

# For the inner loop: starts no server, trains nothing.
test-quick: setup
	OMP_NUM_THREADS=1 $(PYTEST) $(SHARE) tests/unit --ignore tests/unit/bench --ignore tests/unit/modelmaker

# For a machine with a Hopper GPU: test the compiled kernels; measure their speed. docs/gpu.md says
# how to run both without `setup`.
test-gpu: setup
	$(PYTEST) -n $(COMPILERS) tests/kernels

bench-gpu: setup
	for bench in $(sort $(notdir $(basename $(wildcard bench/kernels/bench_*.py)))); do \
	  $(BIN)/python -m bench.kernels.$$bench || exit 1; done

demo: setup
	$(BIN)/sglang-prefill demo

bench: setup
	$(BIN)/python -m bench

# Outside tools get an environment of their own, because SGLang pins versions of what they need.
$(JUDGES)/.installed: pyproject.toml | $(BIN)/uv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(JUDGES)
	$(BIN)/uv pip install --quiet --python $(JUDGES)/bin/python --group judges
	@touch $@

judges: setup $(JUDGES)/.installed
	for judge in lm-eval rerank openai; do $(BIN)/python -m bench.judges $$judge || exit 1; done

# A wheel for `pip install`, until there is a release on an index.
# Modules that were deleted since the last one would come from `build`.
wheel: $(BIN)/uv
	rm -rf build
	$(BIN)/uv build --quiet --wheel --out-dir $(WHEELS)

doctor: setup
	$(BIN)/sglang-prefill doctor

# The Python code of the gRPC definition.
proto: setup
	$(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. --grpc_python_out=. \
	  sglang_prefill_ext/grpc_frontend/prefill.proto

# Renews the locks, from our source and the installed SGLang, and the tables in docs/patches.md.
lock: setup
	$(BIN)/python -m patches.tools.lock
	$(BIN)/python -m patches.tools.patch_docs

clean:
	rm -rf $(VENV) $(JUDGES) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
