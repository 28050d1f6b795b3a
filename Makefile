# Penstock's tasks. `make help` lists them; every one sets up what it needs.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEEDS ?= 2000
DAMAGE_SEEDS ?= 200
DRAIN_SEEDS ?= 100
PAUSE_SEEDS ?= 100
EDIT_SEEDS ?= 60
BLACKOUT_SEEDS ?= 100
UNCLEAN_SEEDS ?= 60
CHANGE_SEEDS ?= 60
FRESH_SECONDS ?= 60
KEPT ?= --kept
ROUNDS ?= 20
BUF := node_modules/.bin/buf
# Containers often set it. Each of the programs below would then compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test check types unit scenarios sim mutate proto proto-check crds metrics chart wheel docs bench images e2e e2e-up e2e-down lock clean

help:  ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(VENV)/.stamp  ## Virtual environment with everything pinned; Java for Spark, a browser for the console's tests

$(VENV)/.stamp: requirements.lock tools/build-requirements.lock pyproject.toml tools/setup.sh tools/browser.sh
	@bash tools/setup.sh "$(PYTHON)" "$(VENV)"
	@touch $@

demo: setup  ## Stream real flights exactly once, kill a broker, the transformer and Spark on the way
	@$(BIN)/python -m examples.flights.demo

# Tests wait for clusters half of their time; the simulator never waits, and takes what they leave.
# The seeds that failed once are among the tests.
test: setup  ## All that CI checks; what keeps one core busy runs two at a time
	@$(MAKE) --no-print-directory -j2 check types proto-check wheel docs
	@$(MAKE) --no-print-directory -j2 unit sim KEPT= MEANWHILE="nice -n 19"
	@echo "make test: everything passed"

check: setup  ## Formatting, lint, import layers, CRDs, metrics, chart values, house style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tools.crds --check
	$(BIN)/python -m tools.metrics_reference --check
	$(BIN)/python -m tools.chart_values --check
	$(BIN)/pytest -q tests/test_house_style.py

types: setup  ## mypy, strict
	$(BIN)/mypy

unit: setup  ## Unit, contract and process-level tests; the house style's are part of check
	$(BIN)/pytest -q -n auto --maxprocesses 8 --dist loadfile --durations=15 --ignore=tests/test_house_style.py

scenarios: setup  ## Bank, pipe, ring and random harm under kills, minutes each; ROUNDS=20
	PENSTOCK_HARM_ROUNDS=$(ROUNDS) $(BIN)/pytest -rP tests/scenarios/test_bank.py tests/scenarios/test_pipe.py tests/scenarios/test_ring.py tests/scenarios/test_bad_days.py::test_random_harm

sim: setup  ## Deterministic simulator, fixed seeds, then new ones; SEEDS=2000 DAMAGE_SEEDS=200 DRAIN_SEEDS=100 PAUSE_SEEDS=100 EDIT_SEEDS=60 BLACKOUT_SEEDS=100 UNCLEAN_SEEDS=60 CHANGE_SEEDS=60 FRESH_SECONDS=60
	$(MEANWHILE) $(BIN)/python tests/simulation/run.py --seeds $(SEEDS) $(KEPT) --fresh-seconds $(FRESH_SECONDS)
	$(MEANWHILE) $(BIN)/python tests/simulation/run.py --damage --seeds $(DAMAGE_SEEDS) --fresh-seconds $(FRESH_SECONDS)
	$(MEANWHILE) $(BIN)/python tests/simulation/run.py --drains --seeds $(DRAIN_SEEDS) --fresh-seconds $(FRESH_SECONDS)
	$(MEANWHILE) $(BIN)/python tests/simulation/run.py --pauses --seeds $(PAUSE_SEEDS) --fresh-seconds $(FRESH_SECONDS)
	$(MEANWHILE) $(BIN)/python tests/simulation/run.py --edits --seeds $(EDIT_SEEDS) --fresh-seconds $(FRESH_SECONDS)
	$(MEANWHILE) $(BIN)/python tests/simulation/run.py --blackouts --seeds $(BLACKOUT_SEEDS) --fresh-seconds $(FRESH_SECONDS)
	$(MEANWHILE) $(BIN)/python tests/simulation/run.py --unclean --seeds $(UNCLEAN_SEEDS) --fresh-seconds $(FRESH_SECONDS)
	$(MEANWHILE) $(BIN)/python tests/simulation/run.py --changes --seeds $(CHANGE_SEEDS) --fresh-seconds $(FRESH_SECONDS)

mutate: setup  ## Change the product a little, see whether tests notice; PATHS=… SAMPLE=n SEED=k WORKERS=n
	@$(BIN)/python -m tools.mutation $(PATHS) $(addprefix --sample=,$(SAMPLE)) $(addprefix --seed=,$(SEED)) $(addprefix --workers=,$(WORKERS)) $(addprefix --report=,$(REPORT)) $(addprefix --again=,$(AGAIN)) $(if $(LIST),--list)

proto: setup  ## Regenerate the protocol stubs
	bash tools/proto.sh src

proto-check: setup  ## Stubs match the protocol; buf lint and breaking changes
	bash tools/proto_check.sh

crds: setup  ## Regenerate crds/, the chart's copy, docs/resources.md from the table of fields
	$(BIN)/python -m tools.crds

metrics: setup  ## Regenerate docs/metrics-reference.md from what processes export
	$(BIN)/python -m tools.metrics_reference

chart: setup  ## Regenerate the table of values in charts/penstock/README.md
	$(BIN)/python -m tools.chart_values

wheel: setup  ## Build the wheel, check its contents, install it bare and with its command line, use it
	$(BIN)/python -m tools.check_wheel

docs: setup  ## The documentation's site in build/site; a broken link fails
	$(BIN)/python -m tools.site

bench: setup  ## Benchmarks beside a real Kafka; JSON lines in benchmarks/results/
	$(BIN)/python -m benchmarks && $(BIN)/python -m benchmarks.table

images: setup  ## Container images of broker, operator and Spark
	@$(BIN)/python -m e2e.harness.images

e2e: setup  ## Scenarios on a real three-node Kubernetes here; ONLY=name KEEP=1 SHORT=1 MINUTES=n SOAK=n SHARED=1 PLAINTEXT=1 RECORD=1
	@$(BIN)/python -m e2e $(if $(KEEP),--keep) $(if $(SHORT),--short) $(addprefix --only=,$(ONLY)) $(addprefix --minutes=,$(MINUTES)) $(addprefix --soak=,$(SOAK)) $(if $(SHARED),--shared) $(if $(PLAINTEXT),--plaintext) $(if $(RECORD),--record)

e2e-up:  ## That Kubernetes alone; prints its kubeconfig
	@e2e/cluster/up

e2e-down:  ## End it
	@e2e/cluster/down

lock: setup  ## Renew all lists of pinned packages, with hashes
	bash tools/lock.sh $(BIN)/uv

clean:  ## Remove what can be rebuilt
	rm -rf $(VENV) node_modules build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
