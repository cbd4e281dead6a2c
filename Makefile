# `make demo` is the first thing to run. Every target sets up what it needs in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all check lint format bench docs clean

demo: .venv/cli
	$(BIN)/ogc demo

test: lint .venv/aside  ## everything CI runs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not kill"

test-all: lint .venv/aside  ## and a hundred kills, a thousand damaged files, every resumed run
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

check: lint .venv/aside  ## format, lint, types and the fast tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not kill"

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/dev  ## the site, in site/
	$(BIN)/python -m zensical build --strict --clean
	@echo "Open site/index.html; it needs no server and no network."

bench: .venv/dev
	$(BIN)/python benchmarks/overhead.py

.venv/cli .venv/dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Setting up .venv (a minute or two the first time) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(notdir $@)]"
	touch $@

.venv/aside: .venv/dev  # timm, apart: with its torchvision installed, nothing imports that looks for one
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --upgrade --target $@ timm torchvision
	touch $@

clean:
	rm -rf .venv runs site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
