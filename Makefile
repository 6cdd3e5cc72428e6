# Every command that a person or CI needs. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.SUFFIXES:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := $(wildcard core ports adapters apps simulation tests benchmarks .ci)

# Options, given on the command line: make run ARGS="--listen 127.0.0.1:9000"
PYTHON ?=
ARGS ?=
SCENARIO ?= first-slice
SEED ?= 1
TEST_JOBS ?= 2
UPGRADE ?=

# Whatever the caller's environment says: without compiled modules each test process compiles everything anew, for 12 s.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- the environment --------------------------------------------------------------------------------

.PHONY: setup
setup: $(VENV)/.setup ## Build .venv with what running needs, from requirements.lock
	@echo "$(VENV) is ready"

.PHONY: setup-dev
setup-dev: $(VENV)/.setup-dev

.PHONY: run
run: $(VENV)/.setup ## Start LunaNexa on this machine: make run ARGS="--help"
	@exec $(BIN)/lunanexa up $(ARGS)

define no_python
  LunaNexa needs Python 3.11 or newer with its venv module, and found none that has both.
    Debian, Ubuntu:  apt install python3 python3-venv
    Fedora:          dnf install python3
  Another Python:    make setup PYTHON=/path/to/python3.12
endef
export no_python

define usable
import sys; sys.version_info >= (3, 11) or sys.exit(1); import ensurepip, venv
endef

# Where the interpreter is gone (a Python of the system that was upgraded), what was installed for it goes too.
GONE := $(shell test -x $(BIN)/python || rm -f $(VENV)/.setup $(VENV)/.setup-dev)

# Asked of each candidate, newest first: an interpreter whose venv module is missing is passed over.
$(BIN)/python:
	@found=; \
	for candidate in $(or $(PYTHON),python3.14 python3.13 python3.12 python3.11 python3 python); do \
	    if "$$candidate" -c '$(usable)' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "$$no_python" >&2; exit 1; fi; \
	echo "Building $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv --clear $(VENV)

# --no-build-isolation: the build backend is in the lock too, so nothing unpinned is fetched.
define install
	@echo "Installing what $(1) lists into $(VENV)"
	@$(PIP) install -qq --require-hashes -r $(1)
	@$(PIP) install -qq --no-deps --no-build-isolation -e .
endef

$(VENV)/.setup: requirements.lock pyproject.toml | $(BIN)/python
	$(call install,requirements.lock)
	@touch $@

# The development lock holds every pin of the runtime lock, so it is enough for both.
$(VENV)/.setup-dev: requirements-dev.lock pyproject.toml | $(BIN)/python
	$(call install,requirements-dev.lock)
	@touch $(VENV)/.setup $@

# --- checks -----------------------------------------------------------------------------------------

# $(call step,NAME,COMMAND): one line with its verdict and time; its output only when it fails.
define step
	@started=$${EPOCHREALTIME/[.,]/}; verdict=ok; \
	output=$$( { $(2); } 2>&1 ) || verdict=FAILED; \
	took_ms=$$(( ($${EPOCHREALTIME/[.,]/} - started) / 1000 )); \
	printf '%-6s %-12s %3d.%01d s  %s\n' $$verdict $(1) $$((took_ms / 1000)) $$((took_ms % 1000 / 100)) \
	    "$$(tail -n 1 <<<"$$output")"; \
	if [ $$verdict != ok ]; then printf '%s\n' "$$output"; exit 1; fi
endef

# $(call together,NAME,JOBS,STEPS): the longest steps first, and all of them though one fails.
define together
	@started=$$SECONDS; failed=; \
	$(MAKE) -k -j$(2) --output-sync=target $(3) || failed=1; \
	echo "make $(1): $$((SECONDS - started)) s"; [ -z "$$failed" ]
endef

.PHONY: check check-code
CODE_CHECKS := check-mypy check-imports check-pyright check-lint check-format check-purity
check: setup-dev ## Lint, types, layers, purity and the fast tests, in under a minute
	$(call together,check,3,check-async test-fast-services test-fast-rest $(CODE_CHECKS))

check-code: setup-dev ## The same without the tests, for who runs all of them next
	$(call together,check-code,2,check-async $(CODE_CHECKS))

.PHONY: check-lint check-format check-mypy check-pyright check-imports check-async check-purity
check-lint: setup-dev
	$(call step,ruff,$(BIN)/ruff check --output-format concise .)

check-format: setup-dev
	$(call step,format,$(BIN)/ruff format --check .)

check-mypy: setup-dev
	$(call step,mypy,$(BIN)/mypy)

check-pyright: setup-dev
	$(call step,pyright,$(BIN)/pyright)

check-imports: setup-dev
	$(call step,layers,$(BIN)/lint-imports)

# What ruff lacks of flake8-async. Not ASYNC114, which wants a list of our services; not ASYNC121: to cancel the nursery and
# return is how a race of two ends; not ASYNC124: a callback without an await is async because its caller awaits it;
# not ASYNC128: a service may hand its task_status on to the one inside it.
ASYNC_RULES := 101,102,103,104,111,112,113,118,120,122,123,125,126,127
comma := ,
FLAKE8_ASYNC := $(BIN)/flake8-async --enable ASYNC$(subst $(comma),$(comma)ASYNC,$(ASYNC_RULES))

# It is slow, keeps no cache and looks at each file alone: so only at those with async code that changed since it passed
# (grep says 1 when none of them has any).
check-async: setup-dev
	$(call step,flake8-async,mkdir -p build; touch build/async.new; changed=; \
	    if [ build/async.passed -nt Makefile ] && [ build/async.passed -nt requirements-dev.lock ]; then \
	        changed="-newer build/async.passed"; \
	    fi; \
	    { find $(SOURCES) -name '*.py' $$changed -not -path 'tests/typing/cases/*' \
	        -exec grep -lZ async {} + || true; } | xargs -0 -r -n 64 -P 2 $(FLAKE8_ASYNC) && mv build/async.new build/async.passed)

# An environment with attrs and nothing else must be able to import core, and ports without conformance/.
check-purity: build/purity/.ready
	$(call step,purity,PYTHONPATH=core:ports build/purity/bin/python .ci/purity.py)

build/purity/.ready: requirements-dev.lock | $(VENV)/.setup-dev
	@rm -rf build/purity
	@$(BIN)/python -m venv --without-pip build/purity
	@site=$$(build/purity/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	cp -r $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/{attr,attrs} "$$site"
	@touch $@

# --- tests ------------------------------------------------------------------------------------------

.PHONY: test
test: setup-dev ## All tests but those by hand, with the coverage gate of core
	@$(MAKE) -k test-coverage test-worlds test-slow

.PHONY: test-fast test-fast-services test-fast-rest test-coverage test-worlds test-slow
test-fast: test-fast-services test-fast-rest

# Halves by folder instead of pytest-xdist: each imports and collects only its own.
SERVICES := tests/apps tests/client
FAST := TESTS_QUICK=1 $(BIN)/pytest -q -m "not by_hand and not slow and not thorough"

test-fast-services: setup-dev
	$(call step,services,$(FAST) $(SERVICES) --junitxml=build/reports/fast-services.xml)

test-fast-rest: setup-dev
	$(call step,all-else,$(FAST) tests $(SERVICES:%=--ignore %) --junitxml=build/reports/fast-rest.xml)

test-coverage: setup-dev
	@$(BIN)/pytest -q -n $(TEST_JOBS) -m "not by_hand and not slow" --junitxml=build/reports/fast.xml \
	    --cov --cov-report=term --cov-report=json:build/coverage/core.json
	@$(BIN)/python .ci/branch_coverage.py build/coverage/core.json 95

# Simulated worlds share nothing, and take a processor each.
test-worlds: setup-dev
	@$(BIN)/pytest -q -n $(TEST_JOBS) -m "slow and not by_hand" tests/simulation --junitxml=build/reports/worlds.xml

# One after another: each of these starts processes of its own.
test-slow: setup-dev
	@$(BIN)/pytest -q -m "slow and not by_hand" --ignore tests/simulation --junitxml=build/reports/slow.xml

.PHONY: sim
sim: $(VENV)/.setup ## Run one scenario of the simulator: make sim SCENARIO=first-slice SEED=7
	@exec $(BIN)/lunanexa-sim run $(SCENARIO) --seed $(SEED) $(ARGS)

.PHONY: swarm
swarm: $(VENV)/.setup ## Run 5,000 seeds of the simulator side by side: make swarm ARGS="--within 30"
	@exec $(BIN)/lunanexa-sim swarm --seeds 5000 $(ARGS)

.PHONY: bench
bench: setup-dev ## Measure against the engine called directly, and print the ratios
	@exec $(BIN)/python -m benchmarks $(ARGS)

# --- upkeep -----------------------------------------------------------------------------------------

.PHONY: fmt
fmt: setup-dev ## Format, and mend what ruff can mend safely
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

# uv, because pip-compile writes the address of the local package index into its output.
UV_COMPILE = build/uv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock" $(UPGRADE) pyproject.toml

.PHONY: docs
docs: setup-dev ## Write docs/contracts and docs/api-reference.md anew
	@$(BIN)/python docs/generate.py

.PHONY: lock
lock: ## Write the lock files anew: make lock UPGRADE=--upgrade takes newer versions
	@python3 -m venv build/uv
	@build/uv/bin/pip install --quiet --disable-pip-version-check uv
	@index=$$(build/uv/bin/pip config get global.index-url 2>/dev/null || true); \
	export UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-$${index:-https://pypi.org/simple}}}"; \
	$(UV_COMPILE) --extra build -o requirements.lock; \
	$(UV_COMPILE) --all-extras -c requirements.lock -o requirements-dev.lock
	@# Where a constraint came from is a comment of no use to a reader, and repeats for every pin.
	@sed -i '/^    #   -c requirements.lock$$/d' requirements-dev.lock

.PHONY: clean
clean: ## Remove everything that these targets made, .venv included
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
