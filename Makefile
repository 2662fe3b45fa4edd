PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: install demo test test-all check format

# The environment, made anew when what it holds has changed.
install: .venv/installed

.venv/installed: setup.cfg setup.py pyproject.toml constraints.txt sb3_cir/zoo_hook.py
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,benchmarks]'
	touch $@

demo: install
	$(BIN)/python -m benchmarks.demo

test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-all: install
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
