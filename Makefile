# Two commands matter: `make run` and `make check`. Both set up .venv first; both may be run again.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STATE  ?= $(CURDIR)/.state

.PHONY: run check bench setup format clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@echo "setting up $(VENV): some 700 MB, which takes a minute, or as long as the network does"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

run: setup
	$(BIN)/llmhostd --state-dir $(STATE) demo-models
	$(BIN)/llmhostd --state-dir $(STATE) serve --profile-at-start

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest

bench: setup
	$(BIN)/python -m pytest --override-ini addopts= --timeout 0 -q -s tests/bench

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(STATE) .bench .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
