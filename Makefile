# The first of these that fits; another one: make PYTHON=python3.12. dm_control does not install on later ones.
TRIED := python3.11 python3.12 python3 python
FITS := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 13))
PYTHON ?= $(shell for name in $(TRIED); do $$name -c '$(FITS)' 2>/dev/null && { echo $$name; break; }; done)
BIN := .venv/bin
EXTRAS := dev,docs,benchmarks,dmc

.PHONY: help install demo demo-paper test test-all docs dist check format

help:
	@echo "make install     the environment, .venv, with everything that the other targets need"
	@echo "make demo        trains CIR on cartpole-balance in minutes, then shows return, learning curve and a video"
	@echo "make demo-paper  the same with the paper's networks: 10 to 15 minutes"
	@echo "make test        the tests; make test-all adds the slow ones; make check runs ruff and mypy"
	@echo "make docs        the documentation, in docs/_build/html"
	@echo "make dist        sdist and wheel, in dist/"
	@echo "make format      formats the code"

# The environment, made anew when what it holds has changed.
install: .venv/installed

.venv/installed: setup.cfg setup.py pyproject.toml constraints.txt sb3_cir/zoo_hook.py
	@test -n '$(PYTHON)' || { echo 'No Python 3.11 or 3.12 with venv was found: install one (Debian: python3-venv), or name one by make PYTHON=/path/to/python.' >&2; exit 1; }
	@echo "Making .venv with $$($(PYTHON) --version): PyTorch, Stable-Baselines3, RL Zoo, simulators and tools. It takes 2 to 10 minutes."
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install -qq --log .venv/pip.log --constraint constraints.txt --editable '.[$(EXTRAS)]' \
		|| { echo 'pip failed, see above; .venv/pip.log has all of it.' >&2; exit 1; }
	@touch $@

demo: install
	@$(BIN)/python -m benchmarks demo

demo-paper: install
	@$(BIN)/python -m benchmarks demo --paper

test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-all: install
	$(BIN)/python -m pytest -n 2 --dist loadfile

docs: install
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

dist: install
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
