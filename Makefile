# The two commands: `make demo` shows what the template gives, `make test` proves it.
# They need Python >= 3.11, git and make; everything else goes into .venv and build/ here.

PYTHON ?= python3
# What the project begins with.
STARTERS := images text diffusion tabular bare
STARTER ?= images
ifeq ($(filter $(STARTER),$(STARTERS)),)
$(error STARTER=$(STARTER): must be one of $(STARTERS), such as make demo STARTER=text)
endif
ARGS ?=
BIN := .venv/bin
PROJECT := build/my-project
SOURCE := {{cookiecutter.project_slug}}
ENGINE := $(SOURCE)/engine
# The library is edited, linted, typed and tested where it lies: no bake.
IN_ENGINE := cd '$(ENGINE)' && PYTHONPATH='$(CURDIR)/$(ENGINE)/src' OMP_NUM_THREADS=1 '$(CURDIR)/$(BIN)/python' -m
BENCHMARKS ?= startup epoch pipeline memory parity tasks faults checkpoint callbacks swa sweep endurance \
  fuzz_commands fuzz_checkpoints
# Compiled at once, so that the first start is as fast as the second.
INSTALL := PATH="$$PATH:$(BIN)" uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint '$(SOURCE)/constraints.txt'

# Baking again drops files that the template no longer has, and keeps data and earlier runs.
define BAKE
mkdir -p $(PROJECT)
find $(PROJECT) -mindepth 1 -maxdepth 1 ! -name data ! -name runs ! -name outputs -exec rm -rf {} +
$(BIN)/cookiecutter . --no-input --default-config --overwrite-if-exists --output-dir build \
  starter=$(STARTER) >build/bake.log || \
  { cat build/bake.log; exit 1; }
endef

.DEFAULT_GOAL := help
.PHONY: help demo test test-starters test-engine lint format bench browser bake clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: bake ## make a project and train it; make demo STARTER=text ARGS="optimizer.lr=0.1" for another
	cd $(PROJECT) && ../../$(BIN)/python train.py $(ARGS)
	@echo 'The project, with this run in it, is in $(PROJECT).'

test: bake ## run every test: the template's, the generated project's, the engine's
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 3 --dist loadfile $(ARGS)
	$(MAKE) -C $(PROJECT) test VENV=../../.venv
	$(MAKE) test-engine

test-starters: .venv/installed ## run all tests of a project of each other starter
	@for starter in $(filter-out images,$(STARTERS)); do \
	  $(MAKE) bake STARTER=$$starter && $(MAKE) -C $(PROJECT) test VENV=../../.venv || exit 1; \
	done; $(MAKE) bake

test-engine: .venv/installed ## run the engine's tests, where it lies; make test-engine ARGS=tests/test_fsdp.py
	$(IN_ENGINE) pytest --numprocesses 2 --dist worksteal $(ARGS)

lint: .venv/installed ## check style, types and layers of the template's own code and the engine; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	$(IN_ENGINE) ruff check .
	$(IN_ENGINE) ruff format --check .
	$(IN_ENGINE) mypy
	cd '$(ENGINE)' && PYTHONPATH=src '$(CURDIR)/$(BIN)/lint-imports' --no-logo --no-cache

format: .venv/installed ## put the template's own code and the engine into style
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .
	$(IN_ENGINE) ruff check --fix --exit-zero .
	$(IN_ENGINE) ruff format .

browser: bake ## look at TensorBoard's and a sweep's pages in Chromium, which must be there; see build/browser
	@$(INSTALL) playwright
	$(BIN)/python -m pytest tests/browser $(ARGS)

bench: bake ## run the benchmarks, on a project with the defaults; make bench BENCHMARKS=parity runs one
	@failed=; for name in $(BENCHMARKS); do \
	  echo "benchmarks/$$name.py"; $(BIN)/python "benchmarks/$$name.py" $(ARGS) || failed="$$failed $$name"; \
	done; test -z "$$failed" || { echo "above a limit:$$failed"; exit 1; }

bake: .venv/installed ## make a project with the defaults in build/
	@$(BAKE)

# One environment for the template's tools and for the project in build/, which it holds as editable.
.venv/installed: pyproject.toml $(SOURCE)/pyproject.toml $(SOURCE)/engine/pyproject.toml $(SOURCE)/constraints.txt
	@test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	@command -v uv >/dev/null || test -x $(BIN)/uv || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@echo 'Installing into .venv ...'
	@$(INSTALL) --group dev
	@$(BAKE)
	@$(INSTALL) --editable '$(PROJECT)/engine[dev]' --editable '$(PROJECT)[dev]'
	@touch $@

clean: ## remove build/, .venv and what tools leave behind
	rm -rf build .venv .mypy_cache .pytest_cache .ruff_cache
	rm -rf '$(ENGINE)/.mypy_cache' '$(ENGINE)/.pytest_cache' '$(ENGINE)/.ruff_cache' '$(ENGINE)/.import_linter_cache'
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
