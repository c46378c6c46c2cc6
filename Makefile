# gradwire: `make demo` trains over a shaped network, `make test` checks everything.
# Both set up what they need: a virtual environment in .venv, torch, the extension, the command.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CARGO ?= cargo
GRADWIRE := target/release/gradwire
# pip's own resolver takes minutes over torch; uv takes seconds.
# Compiled once here, not in each of the many processes of the tests, some of which may not write.
INSTALL = $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python
RUST_SOURCES := $(shell find crates -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint test-rust test-python test-c10d fuzz bench convergence validate clean

help: ## Show the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/created:
	@command -v $(CARGO) >/dev/null || { echo "gradwire needs Rust 1.89 or newer: https://rustup.rs" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "gradwire needs Python 3.10 or newer; set PYTHON=" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@touch $@

$(VENV)/installed: $(VENV)/created pyproject.toml
	$(INSTALL) torch numpy "maturin>=1.9,<2"
	$(INSTALL) --group test --group lint
	@touch $@

$(VENV)/extension: $(VENV)/installed $(RUST_SOURCES) $(wildcard python/gradwire/*.py)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --quiet
	@touch $@

$(GRADWIRE): $(RUST_SOURCES)
	$(CARGO) build --release --quiet --package gradwire-cli
	@touch $@

setup: $(VENV)/extension $(GRADWIRE) ## Install everything into .venv and build the command

demo: setup ## Train a GPT on 4 hosts behind shaped links, on Gloo and on gradwire
	$(BIN)/python demo/run.py --gradwire $(GRADWIRE)

test: lint test-rust test-python ## Run lint and all tests

lint: $(VENV)/installed ## Check formatting, clippy, ruff and mypy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-rust: ## Run the Rust tests
	$(CARGO) test --workspace --exclude gradwire-py

test-python: setup ## Run the Python tests and a part of PyTorch's own distributed suite
	$(BIN)/python -m pytest tests/python
	$(BIN)/python tests/c10d/run_suite.py --fast

test-c10d: setup ## Run PyTorch's whole distributed suite on Gloo and on gradwire (minutes)
	$(BIN)/python tests/c10d/run_suite.py

fuzz: ## Feed hostile bytes to both wires, a minute each (needs nightly Rust and cargo-fuzz)
	$(CARGO) +nightly fuzz run tcp_receive -- -max_total_time=60
	$(CARGO) +nightly fuzz run ring_receive -- -max_total_time=60

bench: setup ## Compare with Gloo, OpenMPI and MPICH; writes docs/benchmarks.md
	$(INSTALL) --group bench
	$(BIN)/python bench/compare.py --gradwire $(GRADWIRE) --out docs/benchmarks.md

convergence: setup ## Train with and without compression, compare losses; writes docs/convergence.md
	$(BIN)/python convergence/benchmark.py --gradwire $(GRADWIRE)

validate: $(GRADWIRE) ## Hold the simulator against published measurements (and those in DATA=dir); writes docs/validation.md
	$(GRADWIRE) validate $(if $(DATA),DATA=$(DATA)) --write docs

clean: ## Remove what was built and installed
	rm -rf target $(VENV) .venv-mpi demo/report.html demo/result.json demo/runs
