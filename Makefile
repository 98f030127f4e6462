# SPDX-License-Identifier: Apache-2.0
# Everything from one place; `make help` lists it. Long logs go to build/*.log and are shown when a step fails.

PYTHON       ?= python3
TORCH        ?= latest# a version, `latest`, or `none`
JOBS         ?= $(shell nproc 2>/dev/null || echo 2)
FUZZ_SECONDS ?= 60

VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/stamps
STEP   := scripts/step
# The C++ build takes its Python (nlohmann-json's headers) from the virtual environment.
CMAKE  := cmake -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
PIP    := $(BIN)/python -m pip --disable-pip-version-check --no-input install --progress-bar off

REQUIREMENTS := $(shell cat pyproject.toml scripts/requirements.py | cksum | cut -d' ' -f1)
NATIVE  := $(shell find CMakeLists.txt cmake include src pyproject.toml -type f)
MODULES := $(shell find python -type d ! -name __pycache__)# a folder is newer when a file came or went

.PHONY: help build test demo lint format bench fuzz sanitize clean distclean native
.DEFAULT_GOAL := help

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18
	@echo "  Variables: PYTHON=$(PYTHON) TORCH=$(TORCH) JOBS=$(JOBS) FUZZ_SECONDS=$(FUZZ_SECONDS)"

# --- the Python package

build: $(STAMPS)/package ## Set up .venv with torch and the package (editable); quick when nothing changed
	@echo "-- ready: $(BIN)/cynosure"

$(STAMPS)/venv:
	@$(STEP) venv "Python environment in $(VENV)" scripts/make_venv "$(PYTHON)" $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/torch-$(TORCH): $(STAMPS)/venv
ifneq ($(TORCH),none)
	@$(STEP) torch "torch ($(TORCH); large the first time)" $(PIP) torch$(if $(filter-out latest,$(TORCH)),==$(TORCH))
endif
	@rm -f $(STAMPS)/torch-* && touch $@

$(STAMPS)/requirements-$(REQUIREMENTS): $(STAMPS)/torch-$(TORCH)
	@$(STEP) requirements "requirements from pyproject.toml" \
	    sh -c '$(BIN)/python scripts/requirements.py > build/requirements.txt && $(PIP) -r build/requirements.txt'
	@rm -f $(STAMPS)/requirements-* && touch $@

$(STAMPS)/package: $(STAMPS)/requirements-$(REQUIREMENTS) $(NATIVE) $(MODULES)
	@$(STEP) package "the package, editable" $(PIP) --no-build-isolation --no-deps --editable . \
	    -Cbuild-dir=build/python -Cbuild.tool-args=-j$(JOBS)
	@touch $@

demo: build ## Run the demonstration
	@$(BIN)/cynosure demo

# --- C++ builds: one rule for every preset

native: $(STAMPS)/package build-release

build-%: $(STAMPS)/requirements-$(REQUIREMENTS)
	@$(STEP) configure-$* "configure the C++ build, $*" $(CMAKE) --preset $*
	@$(STEP) compile-$* "compile the C++ build, $*" cmake --build --preset $* -j $(JOBS)

test: native ## Build, then all C++ and Python tests; both summaries at the end
	@scripts/run_tests $(BIN)/python $(JOBS)

bench: native ## Run the C++ benchmarks
	@build/release/benchmarks/cynosure_benchmarks

sanitize: build-asan build-tsan ## C++ tests under the address, undefined behaviour and thread sanitizers
	@ctest --preset asan -j $(JOBS)
	@ctest --preset tsan -j $(JOBS)

fuzz: build-fuzz ## Each fuzz target for FUZZ_SECONDS
	@scripts/run_fuzzers build/fuzz $(FUZZ_SECONDS)

# --- checks

lint: native ## clang-format, clang-tidy, ruff and mypy
	@scripts/lint $(BIN) $(JOBS)

format: $(STAMPS)/requirements-$(REQUIREMENTS) ## Rewrite the sources as clang-format and ruff want them
	@git ls-files -co --exclude-standard '*.cpp' '*.hpp' | xargs -r $(BIN)/clang-format -i
	@$(BIN)/ruff check -q --fix-only . && $(BIN)/ruff format -q .

clean: ## Remove what was built; keep .venv
	@rm -rf build python/cynosure/_core.pyi $(STAMPS)/package

distclean: clean ## Remove .venv too
	@rm -rf $(VENV)
