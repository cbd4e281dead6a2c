# `make demo` is the first thing to run. Every target sets up what it needs in .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
# Three workers keep two cores busy: one of them often waits, for Ray, a browser or a process that it has started.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder
MINUTES ?= 0
SEED ?=
unexport PYTHONDONTWRITEBYTECODE  # pip does not compile: without bytecode every process would compile torch again

.PHONY: demo test test-all check ready fuzz kernels browser lint format bench docs clean help

demo: .venv/cli  ## train on digits with wrong labels and draw what OGC does
	$(BIN)/ogc demo

test: ready  ## lint, types and all tests but the long ones; CI runs this
	$(PYTEST) -m "not kill"

test-all: ready  ## all tests, with 100 kills, 1,000 damaged files and every resumed run
	$(PYTEST)

check: lint .venv/aside  ## lint, types and the fast tests
	$(PYTEST) -m "not slow and not kill"

ready: .venv/dev
	@$(MAKE) --no-print-directory -j 2 lint .venv/aside browser .venv/compiled

fuzz: .venv/dev  ## property tests with fresh seeds until Ctrl-C; MINUTES=10 to limit, SEED=7 to reproduce
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py $(MINUTES) $(SEED)

kernels: .venv/triton  ## the CUDA kernels in Triton's interpreter, without a GPU (1 GB more, several minutes)
	TRITON_INTERPRET=1 PYTHONPATH=$< $(PYTEST) --dist worksteal tests/clipping/test_cuda_kernels.py \
		tests/engine/test_graphs.py tests/gpu/test_norm_act_cuda.py

browser: .venv/dev  ## find Chromium for the page tests; as root, install it with apt-get if it is missing
	@$(BIN)/python tests/browser.py

lint: .venv/dev  ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/dev  ## format the code and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/dev  ## build the documentation in site/
	$(BIN)/python -m zensical build --strict --clean
	@echo "Open site/index.html; it needs no server and no network."

bench: .venv/dev  ## time per training step with and without OGC
	$(BIN)/python benchmarks/overhead.py

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 12

# pip is told not to compile: half of its time, for files of which few are ever imported. The pip that comes with
# Python 3.11 takes longer to search an index than its successors.
.venv/cli .venv/dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Setting up .venv (a minute or two the first time) ..."
	-$(PIP) --upgrade pip
	$(PIP) -e ".[$(notdir $@)]"
	touch $@

# Compiles what the tests import, beside mypy. Otherwise each worker of pytest would do it, all of them the same files.
.venv/compiled: .venv/dev
	$(BIN)/python -m pytest --collect-only -qq > /dev/null || true  # a failure is reported by the tests
	touch $@

# timm is kept apart: it needs torchvision, and other libraries change what they do when torchvision is installed.
.venv/aside: .venv/dev
	$(PIP) --no-deps --upgrade --target $@ timm torchvision
	touch $@

# Triton is kept apart because torch.compile uses it if it is installed.
.venv/triton: .venv/dev
	$(PIP) --upgrade --target $@ triton
	touch $@

clean:  ## delete .venv and everything that the other targets made
	rm -rf .venv runs site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
