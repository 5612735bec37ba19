# The project's commands. Every target sets up what it needs; `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
# Tests start hundreds of Python programs, which are slow to start without their cached bytecode.
unexport PYTHONDONTWRITEBYTECODE
# `make bench JSON=FILE` also writes its results to FILE.
JSON ?=
# `make chaos`: SEED repeats a run, FAULTS is the number of faults, LOOK how many seconds longer they may last until they are
# noticed. With RESULTS=FILE, the same SEED and FAULTS continue where the last run stopped; a run begins no deployment after
# MINUTES.
SEED ?=
FAULTS ?= 30
RESULTS ?=
MINUTES ?=
LOOK ?=
# `make mutants`: the number of mutants in the sample. SEED applies here too.
MUTANTS ?= 240
# Unit tests of real groups of ranks share a worker: the ranks of one group use two processors.
UNIT_WORKERS ?= 4
UNIT := $(BIN)/python -m pytest tests/unit -n $(UNIT_WORKERS) --dist loadfile --no-loadscope-reorder
# End-to-end tests mostly wait.
WORKERS ?= 4
E2E := $(BIN)/python -m pytest tests/e2e -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Its tests go on where the ones before them have ended, so they cannot run without these.
JOURNEY := tests/e2e/install/test_init.py
# Under the rules of macOS; see tests/darwin. A Mac has them anyway.
DARWIN := $(BIN)/python -m pytest $(if $(filter Darwin,$(shell uname)),,-p tests.darwin.plugin)
# `make image`: PLATFORM=darwin/arm64 builds for that platform only; MAC_PYTHON is the Python of Macs; DEBIAN_MIRROR=URL names a mirror if apt uses none of Debian.
PLATFORM ?=
MAC_PYTHON ?=
export DEBIAN_MIRROR ?=
# KEEP=1 leaves the demo's cluster running.
KEEP ?=

# A third of all bytecode: parts of the models in transformers that need PyTorch, and the client without asyncio of Kubernetes.
UNIMPORTED := /transformers/models/[^/]+/(modeling|modular|convert|feature_extraction|(image|video)_processing)_|/kubernetes/client/

.venv/ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Thunderfleet needs Python 3.11 or newer; $(PYTHON) is older or missing. Name another: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments (on Debian: apt install python3-venv)" >&2; exit 1; }
	@echo "Installing into .venv (hashes checked) …"
	@rm -f $@ && $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.txt
	@# With all processors, unlike pip. Some files are for other versions of Python, and cannot be compiled.
	@$(BIN)/python -m compileall -qq -j 0 -x '$(UNIMPORTED)' \
	  "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" || true
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-14s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: install
install: .venv/ready ## Virtual environment from the hashed requirements

.PHONY: programs
programs: install ## Build the control plane, kubectl and helm, once, into a cache outside the repository
	@$(BIN)/thunderfleet local programs

.PHONY: prometheus
prometheus: install ## Build Prometheus and promtool, once, for the tests of metrics, alerts and dashboard
	@$(BIN)/thunderfleet local programs --monitoring

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
	@$(MAKE) --no-print-directory -j2 types-here types-darwin

.PHONY: types-here
types-here:
	$(BIN)/mypy

# A cache of its own: mypy uses no results of another platform.
.PHONY: types-darwin
types-darwin:
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin

.PHONY: unit
unit: programs ## Unit and property tests
	$(UNIT)

.PHONY: quick
quick: programs ## Unit tests without those that take long (SLOW in tests/support/suite/order.py)
	$(UNIT) -m "not slow and not soak"

.PHONY: darwin
darwin: programs ## Unit tests of what runs on Macs, under the rules of macOS (needs namespaces, as root or not)
	$(DARWIN) -n 3 --dist loadfile --no-loadscope-reorder tests/darwin tests/unit/kubelet tests/unit/agent tests/unit/runner \
	  tests/unit/localcluster tests/unit/cli

.PHONY: darwin-quick
darwin-quick: install ## Those tests of `make darwin` that have failed there before
	@# In a worker of pytest-xdist, as `make darwin` runs.
	$(DARWIN) -n 1 tests/darwin
	$(DARWIN) -n 0 tests/unit/agent/measure/test_streams.py tests/unit/kubelet/node/test_node_machine.py \
	  tests/unit/localcluster/machines/test_addresses.py tests/unit/localcluster/test_control.py tests/unit/runner/host/test_parent_death.py \
	  tests/unit/runner/host/test_waiting_process.py::test_a_process_that_had_closed_its_channel_is_not_ended_by_the_supervisor \
	  tests/unit/agent/measure/test_measure_peers.py::test_a_rank_that_holds_the_interpreter_ends_with_its_agent \
	  tests/unit/kubelet/bootstrap/test_join_cli.py::test_pods_wait_for_a_kubelet_that_comes_before_other_programs \
	  tests/unit/kubelet/containers/test_pods_attach.py::test_input_output_and_errors_reach_the_client_without_waiting_for_a_whole_line \
	  tests/unit/kubelet/node/test_node_addresses.py::test_commands_run_only_when_the_kernel_no_longer_uses_the_published_address \
	  tests/unit/kubelet/pods/test_pods_running.py::test_pod_ends_politely_when_deleted \
	  tests/unit/kubelet/pods/test_pods_running.py::test_whole_process_group_and_strays_end

.PHONY: darwin-builds
darwin-builds: install ## Wheels of all requirements for Macs, for each version of Python, and all Go programs built for Macs
	$(BIN)/python -m tests.darwin.wheels 3.11 3.12 3.13 3.14
	$(BIN)/python -m tests.darwin.programs

.PHONY: e2e
e2e: programs prometheus ## End-to-end tests on real control planes
	$(E2E)

.PHONY: check
check: ## Inner loop: lint, types and quick unit tests, and where the time went
	@$(PYTHON) tests/support/suite/times.py install programs lint types quick

.PHONY: test
test: ## Everything that must pass, and where the time went
	@$(PYTHON) tests/support/suite/times.py install programs prometheus lint types unit darwin-quick e2e

.PHONY: soak
soak: ## What takes hours: whole matrices, fuzzing, chaos and a mutation sample
	@$(PYTHON) tests/support/suite/times.py install programs prometheus darwin darwin-builds matrices fuzz chaos mutants

# The tests of the image use runc, which needs no daemon.
.PHONY: runc
runc: ## Install runc from the packages of Debian, if it is missing (Linux, as root)
	@command -v runc >/dev/null || test "$$(uname)" = Darwin || { apt-get update -qq && apt-get install -y -qq --no-install-recommends runc; }

# The tests of the page in a browser, its pictures and its figures in `make bench`. Chromium needs a font, which Debian does not declare.
.PHONY: chromium
chromium: ## Install Chromium and its driver from the packages of Debian, if they are missing (Linux, as root)
	@{ command -v chromium && command -v chromedriver; } >/dev/null || test "$$(uname)" = Darwin || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core; }

.PHONY: matrices
matrices: programs prometheus runc chromium ## The cases of unit and end-to-end tests that `make test` leaves out
	$(UNIT) -m soak
	$(E2E) -m soak --ignore $(JOURNEY)
	$(BIN)/python -m pytest $(JOURNEY) -m "soak or not soak"

.PHONY: fuzz
fuzz: install ## All tests with generated input, with many examples (SEED=N EXAMPLES=N MINUTES=N); resumes where it stopped
	$(BIN)/python -m tests.fuzz $(if $(SEED),--seed $(SEED)) $(if $(EXAMPLES),--examples $(EXAMPLES)) $(if $(MINUTES),--minutes $(MINUTES))

.PHONY: mutants
mutants: install ## Score a seeded sample of mutants of the pure modules (SEED=N MUTANTS=N); resumes where it stopped
	$(BIN)/python -m tests.mutation --mutants $(MUTANTS) $(if $(SEED),--seed $(SEED))

.PHONY: chaos
chaos: programs prometheus ## Faults at every stage of a group's life (SEED=N FAULTS=N MINUTES=N LOOK=SECONDS RESULTS=FILE)
	$(BIN)/python -m tests.chaos --faults $(FAULTS) $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(LOOK),--look $(LOOK)) \
	  $(if $(RESULTS),--results $(RESULTS))

.PHONY: bench
bench: programs ## Benchmarks, as a table (JSON=FILE)
	$(BIN)/python -m tests.bench $(if $(JSON),--json $(JSON))

.PHONY: crds
crds: install ## Generate the CRDs from the models
	$(BIN)/python -m thunderfleet_crds.generate crds --chart charts/thunderfleet

.PHONY: docs
docs: install ## Generate docs/reference and the dashboards from the code
	$(BIN)/python docs/generate_reference.py
	$(BIN)/python -m thunderfleet_dashboards

.PHONY: page
page: ## Build the files of the live page, which are committed (needs Node.js and npm)
	cd view/page && npm ci --no-audit --no-fund && npm run types && npm run build

.PHONY: screenshots
screenshots: programs chromium ## Take docs/page.png from a real run, in headless Chromium
	$(BIN)/python -m tests.support.page.screenshots docs/page.png

.PHONY: dist
dist: programs ## Wheel and chart, into dist/
	rm -rf dist
	$(BIN)/python -m hatchling build -t wheel -d dist
	"$$($(BIN)/thunderfleet local programs)/helm" package charts/thunderfleet -d dist

.PHONY: image
image: install ## Image for Linux nodes (amd64, arm64) and Macs into dist/image, without a container engine
	$(BIN)/python -m thunderfleet_image build $(if $(PLATFORM),--platform $(PLATFORM)) $(if $(MAC_PYTHON),--mac-python $(MAC_PYTHON))

.PHONY: image-lock
image-lock: install ## Pin the versions of the image's Debian packages that are offered now
	$(BIN)/python -m thunderfleet_image lock

.PHONY: requirements
requirements: ## Upgrade and pin all requirements, then those of the image (needs uv)
	uv pip compile pyproject.toml --all-extras --generate-hashes --universal --python-version 3.11 \
	  --no-header --no-annotate --quiet --upgrade -o requirements.txt
	uv pip compile --group pyproject.toml:image --constraint requirements.txt --generate-hashes --universal \
	  --python-version 3.13 --no-header --no-annotate --quiet --upgrade -o image/requirements.txt

.PHONY: clean
clean: ## Remove the virtual environment and caches in the checkout
	rm -rf .venv dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
