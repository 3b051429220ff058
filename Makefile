# The two commands: `make demo` shows what the template gives, `make test` proves it.
# They need Python >= 3.11, git and make; everything else goes into .venv and build/ here.

PYTHON ?= python3
# What the project begins with.
STARTERS := images segmentation text huggingface diffusion tabular bare
STARTER ?= images
ifeq ($(filter $(STARTER),$(STARTERS)),)
$(error STARTER=$(STARTER): must be one of $(STARTERS), such as make demo STARTER=text)
endif
ARGS ?=
# Which versions; another choice, such as "--resolution lowest-direct", is for a new .venv: make clean.
RESOLVE ?= --constraint '$(SOURCE)/constraints.txt'
BIN := .venv/bin
PROJECT := build/my-project
SOURCE := {{cookiecutter.project_slug}}
LIBRARY := onecurve
HERE := OMP_NUM_THREADS=1 $(BIN)/python -m
# The library is edited, linted, typed and tested where it lies: no bake.
IN_LIBRARY := cd $(LIBRARY) && PYTHONPATH='$(CURDIR)/$(LIBRARY)/src' OMP_NUM_THREADS=1 '$(CURDIR)/$(BIN)/python' -m
BENCHMARKS ?= startup epoch pipeline memory meshes planner faults sweep
# Tests meet what Python does by itself: it compiles what it imports, and keeps lines back that no terminal shows.
unexport PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED
# Compiled at once, so that the first start is as fast as the second.
# Who looks on sees uv's bars: how much there is to download, and how far it is.
INSTALL := PATH="$$PATH:$(BIN)" uv pip install $$(test -t 2 || echo --quiet) --compile-bytecode --python $(BIN)/python $(RESOLVE)

# Baking again drops files that the template no longer has, and keeps data and earlier runs.
define BAKE
mkdir -p $(PROJECT)
find $(PROJECT) -mindepth 1 -maxdepth 1 ! -name data ! -name runs ! -name outputs -exec rm -rf {} +
$(BIN)/cookiecutter . --no-input --default-config --overwrite-if-exists --output-dir build \
  starter=$(STARTER) >build/bake.log 2>&1 || \
  { cat build/bake.log; exit 1; }
endef

# Make .venv of this Python, again where the last one is broken, or of another than was typed.
WHICH = import os, sys; print(sys.version_info[:2], os.path.realpath(sys.base_prefix))
define MAKE_VENV
"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo 'error: PYTHON=$(PYTHON): no such Python, or older than 3.11; another: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12, or its path' >&2; exit 2; }; \
has=$$(".venv/bin/python" -c '$(WHICH)' 2>/dev/null); \
wants=$$("$(PYTHON)" -c '$(WHICH)'); \
if test -f ".venv/pyvenv.cfg" && test "$$has" != "$$wants" && { test -z "$$has" || test "$(origin PYTHON)" != file; }; then \
  echo 'Making .venv again, for $(PYTHON) ...'; rm -rf ".venv"; \
fi; \
test -x ".venv/bin/python" || "$(PYTHON)" -m venv ".venv" || { rm -rf ".venv"; exit 2; }
endef

# PyTorch's own index has wheels without CUDA's gigabytes for a machine without a GPU; uv selects the wheel.
# If the network blocks that index, the ordinary wheels are used.
define FIND_WHEELS
test -n "$$UV_TORCH_BACKEND" || { \
  printf 'torch\ntorchvision\n' | UV_HTTP_RETRIES=0 UV_HTTP_TIMEOUT=10 uv pip compile --quiet --no-deps \
    --python ".venv/bin/python" --constraint '$(SOURCE)/constraints.txt' --torch-backend auto - >/dev/null 2>&1 \
  && export UV_TORCH_BACKEND=auto \
  || echo "PyTorch's own index cannot be reached: using the ordinary wheels, which include CUDA."; }
endef

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-starters test-library test-storage test-slurm test-rounding lint format bench gpu browser docs face bake clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { \
	    line = sprintf("  make %-13s %s\n", $$1, $$2); \
	    if ($$1 ~ /^(demo|test|docs|help)$$/) first = first line; else rest = rest line \
	  } END { printf "To begin with:\n%s\nTo work on the template:\n%s", first, rest }' Makefile

demo: bake ## make a project and train it; make demo STARTER=text ARGS="optimizer.lr=0.1" for another
	cd $(PROJECT) && ../../$(BIN)/python train.py $(ARGS)
	@echo 'The project, with this run in it, is in $(PROJECT).'

test: bake ## run the tests: the template's, the generated project's, the library's
	$(HERE) pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder -m 'not long' $(ARGS)
	$(MAKE) -C $(PROJECT) test VENV=../../.venv
	$(MAKE) test-library

# On every push, too; only what somebody types and waits for leaves them out.
test-long: bake .venv/huggingface ## run the long tests, which `make test` leaves out: several nodes, further variants
	$(HERE) pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder -m long $(ARGS)
	$(IN_LIBRARY) pytest --numprocesses 3 --dist worksteal -m long $(ARGS)

test-starters: .venv/installed ## run all tests of a project of each other starter
	@for starter in $(filter-out images,$(STARTERS)); do \
	  $(MAKE) bake STARTER=$$starter && $(MAKE) -C $(PROJECT) test VENV=../../.venv || exit 1; \
	done; $(MAKE) bake

test-library: .venv/installed ## run only the library's tests; make test-library ARGS=tests/strategies/fsdp
	$(IN_LIBRARY) pytest --numprocesses 2 --dist worksteal -m 'not long' $(ARGS)

test-storage: bake ## run the tests of checkpoints in object storage, with a local server
	@$(INSTALL) --editable './$(LIBRARY)[s3-test]'
	$(IN_LIBRARY) pytest tests/storage $(ARGS)

# Root, apt and network namespaces: where one is missing it says so and fails.
test-slurm: .venv/installed ## run the tests that need a real Slurm, which is installed, started here, and stopped again
	$(IN_LIBRARY) pytest tests/slurm $(ARGS)

# A processor adds in the order of its own kernels; the libraries have those of other processors, too.
KERNELS = "" \
  "ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2" \
  "ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2"

test-rounding: bake ## run the tests that compare numbers, with the kernels of three kinds of processors
	@failed=; for kernels in $(KERNELS); do \
	  echo "kernels: $${kernels:-those of this processor}"; \
	  env $$kernels $(MAKE) -C $(PROJECT) test VENV=../../.venv ARGS='-k "strategies or callbacks or models or docs"' || failed=1; \
	  ($(subst OMP_NUM_THREADS,env $$kernels OMP_NUM_THREADS,$(IN_LIBRARY)) pytest \
	    --numprocesses 2 --dist worksteal -m compares $(ARGS)) || failed=1; \
	done; test -z "$$failed"

lint: .venv/installed ## check style, types, walls, budgets and workflows of the template and the library; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -m pytest -q tests/test_workflows.py
	$(IN_LIBRARY) ruff check .
	$(IN_LIBRARY) ruff format --check .
	$(IN_LIBRARY) mypy
	cd $(LIBRARY) && PYTHONPATH=src '$(CURDIR)/$(BIN)/lint-imports' --no-logo --no-cache
	$(BIN)/python .ci/budgets.py

format: .venv/installed ## format the template's own code and the library
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .
	$(IN_LIBRARY) ruff check --fix --exit-zero .
	$(IN_LIBRARY) ruff format .

browser: bake ## check a sweep's page in Chromium, which must be installed; see build/browser
	@$(INSTALL) playwright
	$(BIN)/python -m pytest tests/browser $(ARGS)

bench: bake ## run the benchmarks, on a project with the defaults; make bench BENCHMARKS=epoch runs one
	@failed=; for name in $(BENCHMARKS); do \
	  echo "benchmarks/$$name.py"; $(BIN)/python "benchmarks/$$name.py" $(ARGS) || failed="$$failed $$name"; \
	done; test -z "$$failed" || { echo "above a limit:$$failed"; exit 1; }

# A machine without a network or .venv: PYTHONPATH=onecurve/src:benchmarks python3 -m gpu_check
gpu: .venv/installed ## check and measure training on the GPU of this machine, in 10 minutes at most; see build/gpu
	PYTHONPATH='$(LIBRARY)/src:benchmarks' $(BIN)/python -m gpu_check --out build/gpu $(ARGS)

docs: .venv/installed ## make the site: the template's pages, a project's, the library's, benchmarks; see build/docs/site
	@rm -rf build/docs && mkdir -p build/docs/pages
	@$(BIN)/cookiecutter . --no-input --default-config --output-dir build/docs >build/docs/bake.log 2>&1 || { cat build/docs/bake.log; exit 1; }
	@cp build/docs/my-project/docs/project.md build/docs/my-project/docs/tasks.md build/docs/pages
	@cp -R $(LIBRARY)/docs/. docs/*.md docs/pictures build/docs/pages
	@cp benchmarks/RESULTS.md build/docs/pages/results.md
	@$(BIN)/python docs/plots.py benchmarks/RESULTS.md build/docs/pages/pictures
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --config-file docs/mkdocs.yml $(ARGS)
	@echo 'Open build/docs/site/index.html.'

face: bake ## train for the two pictures of the README, and draw them again
	@PATH="$(abspath $(BIN)):$$PATH" python docs/record.py docs/pictures/terminal.svg $(PROJECT) \
	  "python train.py strategy=ddp trainer.max_epochs=3" \
	  "python train.py resume=last trainer.max_epochs=4 strategy=pipeline"
	@$(BIN)/python docs/curves.py $(PROJECT) docs/pictures/curves.svg

bake: .venv/installed $(if $(filter huggingface,$(STARTER)),.venv/huggingface) ## make a project with the defaults in build/
	@$(BAKE)

# What the project of one starter needs beside what those of all need.
.venv/huggingface: .venv/installed
	@PATH="$$PATH:$(BIN)"; export PATH; $(FIND_WHEELS); $(INSTALL) peft tokenizers transformers
	@touch $@

# Another Python than the last one's is typed: `make` would else see nothing to do.
ifneq ($(origin PYTHON),file)
ifneq ($(shell .venv/bin/python -c '$(WHICH)' 2>/dev/null),$(shell "$(PYTHON)" -c '$(WHICH)' 2>/dev/null))
.venv/installed: FORCE
FORCE:
endif
endif

# One environment for the template's tools and for the project in build/, which it holds as editable.
.venv/installed: pyproject.toml $(SOURCE)/pyproject.toml $(LIBRARY)/pyproject.toml $(SOURCE)/constraints.txt
	@$(MAKE_VENV)
	@command -v uv >/dev/null || test -x $(BIN)/uv || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@echo 'Installing into .venv ...'
	@$(INSTALL) --group dev
	@$(BAKE)
	@PATH="$$PATH:$(BIN)"; export PATH; $(FIND_WHEELS); \
	$(INSTALL) --no-sources --editable './$(LIBRARY)[dev]' --editable '$(PROJECT)[dev]'
	@touch $@

clean: ## remove build/, .venv and what tools leave behind
	rm -rf build .venv .mypy_cache .pytest_cache .ruff_cache
	cd $(LIBRARY) && rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
