# Every target bootstraps .venv by itself; a machine needs python3 and make, nothing else.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= $(shell python3 requirements/interpreter.py)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCK := requirements/dev.lock
KILLS ?= 50
JOBS ?= 2
EDGE ?= native
SECONDS ?= 20
ROUNDS ?= 3
RESTARTS ?= 2
MINUTES ?= 30
COMPAT := .cache/compat/.ready

help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(READY): $(LOCK) pyproject.toml
	@echo "setting up $(VENV) (once; some hundred MB of wheels)"
	@python=$(PYTHON); \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "bourn needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }; \
	$$python -c 'import ensurepip' 2>/dev/null || { echo "this python3 has no venv module: install it (Debian: apt install python3-venv)" >&2; exit 1; }; \
	test -x $(BIN)/python || $$python -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/uv.lock
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip sync --quiet --require-hashes $(LOCK) requirements/uv.lock
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-deps --editable .
	@touch $@

setup: $(READY) ## make .venv with the locked dependencies

serve: $(READY) ## run the server on ./bourn-data; flags by ARGS="--port 9000"
	@exec $(BIN)/bourn serve $(ARGS)

format: $(READY) ## format the code and mend what ruff can mend
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

check: $(READY) ## format, lint, types, import layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --config pyproject.toml

unit: $(READY) ## the test suite without the crash run
	@$(BIN)/python -m pytest -n $(JOBS) -q -m "not long" --ignore tests/compat

long: $(READY) ## the tests that take long, and that `make test` leaves out
	@$(BIN)/python -m pytest -n $(JOBS) -q -m long --ignore tests/compat

$(COMPAT): $(READY) requirements/compat.lock requirements/node.lock tests/compat/tssdk/package-lock.json
	@echo "setting up the official clients (once)"
	@$(BIN)/python -m tests.compat.install
	@touch $@

compat: $(COMPAT) ## the official clients against a real server; EDGE=asgi for the other edge
	@BOURN_TEST_EDGE=$(EDGE) $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -q tests/compat

crash: $(READY) ## kill a node on local disk KILLS=50 times and check every promise
	@$(BIN)/python -m tests.crash --kills $(KILLS)

fuzz-api: $(READY) ## SECONDS=20 of valid and broken requests, made from the server's own document
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

stress: $(READY) ## everything at once against an oracle, SECONDS=20, then SIGTERM under load; ARGS="--seed N"
	@$(BIN)/python -m tests.stress --seconds $(SECONDS) $(ARGS)

pipeline-proof: $(READY) ## append, read and kill -9 beside a working pipeline, ROUNDS=3 small ones; from 10 on: 1,000 streams, 1 GB
	@$(BIN)/python -m tests.proof --rounds $(ROUNDS) $(ARGS)

connector-proof: $(READY) ## a Spark query between streams, killed with -9 RESTARTS=2 times: every record once, in order
	@$(BIN)/python -m tests.connector_proof --restarts $(RESTARTS) $(ARGS)

test: export BOURN_TEST_TALLY := $(CURDIR)/.cache/tally
test: check ## everything that must pass before a change lands
	@mkdir -p .cache && : > $$BOURN_TEST_TALLY
	@$(MAKE) --no-print-directory unit compat
	@$(MAKE) --no-print-directory --jobs 3 --output-sync=line fuzz-api crash pipeline-proof
	@$(BIN)/python -m tests.tally $$BOURN_TEST_TALLY && rm $$BOURN_TEST_TALLY

bench-engine: $(READY) ## measure the engine: table, and bench/results/engine.json
	@$(BIN)/python -m bench.engine

bench-pipeline: $(READY) ## measure the pipeline and the history: table, and bench/results/pipeline.json; flags by ARGS
	@$(BIN)/python -m bench.pipeline $(ARGS)

bench-http: $(READY) ## measure the server through HTTP: table, and bench/results/http.json
	@$(BIN)/python -m bench.http $(ARGS)

bench-connector: $(READY) ## measure the Spark connector: table, and bench/results/connector.json; flags by ARGS
	@$(BIN)/python -m bench.connector $(ARGS)

load: $(READY) ## 2,000 followers, 500 sessions, then every attack: bench/results/load.json; flags by ARGS
	@$(BIN)/python -m bench.load $(ARGS)

versus: export BOURN_TEST_VERSITYGW ?= build
versus: $(READY) ## Bourn against s2 lite, turn by turn: table, and bench/results/versus.json; flags by ARGS
	@$(BIN)/python -m bench.versus $(ARGS)
	@$(BIN)/python -m bench.plots

ceilings: $(READY) ## what loopback, disk and memory can do at most: bench/results/ceilings.json
	@$(BIN)/python -m bench.ceilings $(ARGS)
	@$(BIN)/python -m bench.plots

scaling: $(READY) ## cost by streams, 1 to 100,000, and by history, 1 to 100 GB: bench/results/scaling.json; flags by ARGS
	@$(BIN)/python -m bench.scaling $(ARGS)
	@$(BIN)/python -m bench.plots

soak: $(READY) ## half of full load for MINUTES=30, is memory flat: bench/results/soak.json; flags by ARGS
	@$(BIN)/python -m bench.soak --minutes $(MINUTES) $(ARGS); ended=$$?; $(BIN)/python -m bench.plots && exit $$ended

profiles: $(READY) ## flame graphs of the server, path by path: bench/results/profiles; paths and flags by ARGS
	@$(BIN)/python -m bench.profiles $(ARGS)
	@$(BIN)/python -m bench.plots

plots: $(READY) ## docs/performance.md and docs/plots from the files in bench/results
	@$(BIN)/python -m bench.plots

lock: $(READY) ## refresh the locked dependencies from pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --upgrade pyproject.toml --group dev -o $(LOCK)

clean: ## remove the environment and every cache
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .cache dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help setup serve format check unit long compat fuzz-api stress crash pipeline-proof connector-proof test bench-engine bench-pipeline bench-http bench-connector load versus ceilings scaling soak profiles plots lock clean
