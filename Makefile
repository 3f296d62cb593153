# Every target sets up what it needs; `make setup` takes seconds when nothing changed.
VENV   := .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -q
# Byte code once at install: a server imports some 5,000 modules in each of its processes.
UV     := $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python
STAMP  := $(VENV)/.installed
# Whole files on each worker, so that a server serves one of them; each worker needs about 6 GiB.
# In the order of the names: servers first, and the many short tests fill up what is left.
WORKERS ?= 2
SHARE   := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Processes that share the GPU: what takes time there is the compiler, which has one core in each.
COMPILERS ?= 8
JUDGES := .judges
WHEELS ?= dist

.PHONY: setup check test test-quick test-gpu demo bench bench-gpu judges doctor wheel proto lock clean

setup: $(STAMP)

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv

$(STAMP): pyproject.toml | $(BIN)/uv
	$(UV) --editable '.[dev]'
	@touch $@

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(PYTEST) $(SHARE) tests/contract

# All that `check` leaves. Both parts run and tell what failed, whatever becomes of the first one.
# Real servers share the machine with whatever else it does: tests that fail run once more, alone and
# on new servers, and fail for good at the first that fails again.
# Kernels need no servers, so whoever is done first takes tests off the other.
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

# On a machine with a Hopper GPU: the kernels compiled, then their speed. Without `setup`: docs/gpu.md.
test-gpu: setup
	$(PYTEST) -n $(COMPILERS) tests/kernels

bench-gpu: setup
	for kernel in merge_state label_readout shared_prefix_attention expert_blocks; do \
	  $(BIN)/python -m bench.kernels.bench_$$kernel || exit 1; done

demo: setup
	$(BIN)/sglang-prefill demo

bench: setup
	$(BIN)/python -m bench

# Outside tools, in an environment of their own: what SGLang pins stays as it is.
$(JUDGES)/.installed: pyproject.toml | $(BIN)/uv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(JUDGES)
	$(BIN)/uv pip install --quiet --python $(JUDGES)/bin/python --group judges
	@touch $@

judges: setup $(JUDGES)/.installed
	for judge in lm-eval rerank openai; do $(BIN)/python -m bench.judges $$judge || exit 1; done

# What `pip install` takes, until there is a release on an index.
wheel: $(BIN)/uv
	$(BIN)/uv build --quiet --wheel --out-dir $(WHEELS)

doctor: setup
	$(BIN)/sglang-prefill doctor

# The Python code of the gRPC definition.
proto: setup
	$(BIN)/python -m tools.proto

# What is used of SGLang, as our source and the installed release say, and the table in the docs.
lock: setup
	$(BIN)/python -m tools.lock
	$(BIN)/python -m tools.patch_docs

clean:
	rm -rf $(VENV) $(JUDGES) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
