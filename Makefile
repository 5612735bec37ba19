# The project's commands. `make demo` and `make test` set up whatever they need; `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
# Some machines forbid Python to keep what it has compiled; tests start hundreds of programs.
unexport PYTHONDONTWRITEBYTECODE
# Where `make bench` writes its figures as JSON, when set.
JSON ?=
# `make chaos`: SEED repeats a run, FAULTS is how many are injected.
SEED ?=
FAULTS ?= 30
# KEEP=1 leaves the demo's cluster running.
KEEP ?=

.venv/ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Thunderfleet needs Python 3.11 or newer; $(PYTHON) is older or missing. Name another: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments (on Debian: apt install python3-venv)" >&2; exit 1; }
	@echo "Installing into .venv (hashes checked) …"
	@rm -f $@ && $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: install
install: .venv/ready ## Virtual environment from the hashed requirements

.PHONY: programs
programs: install ## Control plane, kubectl and helm, built once into a cache outside the repo
	@$(BIN)/thunderfleet programs

.PHONY: prometheus
prometheus: install ## Prometheus and promtool, for the tests of metrics, alerts and dashboard; built once like the others
	@$(BIN)/thunderfleet programs --monitoring

.PHONY: demo
demo: install ## A fleet of recorded Macs, the chart, a model deployed, a completion answered (KEEP=1: leave it running)
	@$(BIN)/thunderfleet demo $(if $(KEEP),--keep)

.PHONY: lint
lint: install ## Style, layering, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m thunderfleet_crds.generate --check crds --chart charts/thunderfleet

.PHONY: types
types: install ## Strict types
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin

.PHONY: unit
unit: programs ## Unit and property tests
	$(BIN)/python -m pytest tests/unit -n 2 --dist loadfile --durations=15

.PHONY: e2e
e2e: programs prometheus ## End-to-end tests on real control planes, two at a time: they mostly wait
	$(BIN)/python -m pytest tests/e2e -n 2 --dist loadfile --no-loadscope-reorder --durations=15

.PHONY: test
test: lint types unit e2e ## Everything that must pass

.PHONY: fuzz
fuzz: install ## Parsers and decisions of discovery against 20,000 inputs each
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -n 2 \
	  tests/unit/agent/test_parsers.py tests/unit/agent/test_flap_damper.py tests/unit/agent/test_reach.py

.PHONY: chaos
chaos: programs ## Faults at every stage of groups' lives, by a seed that is printed (SEED=N FAULTS=N JSON=FILE)
	$(BIN)/python -m tests.chaos --faults $(FAULTS) $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json $(JSON))

.PHONY: bench
bench: programs ## Figures, as a table (JSON=FILE writes them too)
	$(BIN)/python -m tests.bench $(if $(JSON),--json $(JSON))

.PHONY: crds
crds: install ## Generate the CRDs from the models
	$(BIN)/python -m thunderfleet_crds.generate crds --chart charts/thunderfleet

.PHONY: requirements
requirements: ## Pin all requirements anew (needs uv)
	uv pip compile pyproject.toml --all-extras --generate-hashes --universal --python-version 3.11 \
	  --no-header --no-annotate --quiet --upgrade -o requirements.txt

.PHONY: clean
clean: ## Remove the virtual environment and caches in the checkout
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
