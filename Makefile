# The commands of the house; all of them run in .venv, which the first one makes.
#
#   make serve                        chat with the bundled model: prints the address of the page
#   make serve ARGS="--port 9000"     … with options; ARGS="path/to/checkpoint" serves another model
#   make test                         lint, types, house rules and the test suite   (ARGS="-k outbox" selects tests)
#   make check                        the first part of it: lint, types and house rules
#   make bench                        the engine on this machine, without HTTP: speed, accuracy, tokens
#   make bench REF=folder             … beside the engines and on the model that loadtest/peers/setup.py put there
#   make kernels                      compile every GPU kernel for sm_80 and sm_90 (no GPU needed) and show what it uses
#   make architecture                 draw docs/architecture.svg from the imports, and count the path of a request
#   make clean                        forget .venv and everything built

SHELL := /bin/bash
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: serve test check bench kernels architecture clean

serve: .venv/.serve
	@exec $(BIN)/triolet serve $(ARGS)

test: check
	$(BIN)/pytest -n 2 --dist loadfile $(ARGS)

check: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/pytest -q tests/test_house.py tests/test_types.py

bench: .venv/.serve
	@peers=$$($(if $(REF),$(BIN)/python loadtest/peers/setup.py $(REF) --only-print,:) | tr '\n' ' '); \
	eval "exec $(BIN)/triolet bench peers $(if $(REF),$(REF)/hf) $$peers" '$(ARGS)'

kernels: .venv/.test
	$(BIN)/python -m triolet.loadtest.device.compile_kernels --processes 2 $(ARGS)

architecture: .venv/.test
	$(BIN)/python -m tests.architecture $(ARGS)

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Serving needs no torch: its environment is there in well under a minute. The tests compare with torch and
# transformers and drive real clients, so theirs is larger. A stamp is renewed when what to install changes.
.venv/.serve: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what serving needs into .venv (once; no torch)…"
	@$(PIP) install --constraint constraints.txt --editable .
	@touch $@

.venv/.test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what the tests need into .venv (once; torch among it, so this takes a few minutes)…"
	@$(PIP) install --constraint constraints.txt --editable '.[test]'
	@touch .venv/.serve $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Triolet needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	@echo "Making the virtual environment .venv…"
	@$(PYTHON) -m venv .venv
