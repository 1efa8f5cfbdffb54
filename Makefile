# The commands of the house; all of them run in .venv, which the first one makes.
#
#   make serve                        chat with the bundled model: prints the address of the page
#   make serve ARGS="--port 9000"     … with options; ARGS="path/to/checkpoint" serves another model
#   make test                         lint, types, house rules and the test suite   (ARGS="-k outbox" selects tests)
#   make check                        the first part of it: lint, types and house rules
#   make bench                        the engine on this machine, without HTTP: speed, accuracy, tokens
#   make bench REF=folder             … beside the engines and on the model that loadtest/peers/setup.py put there
#   make test-arm64                   the CPU engine on an emulated AArch64 (QEMU, and apt of Debian; 11 minutes)
#   make test-amx                     the AMX kernels on an interpreted Sapphire Rapids (Bochs, and apt of Debian)
#   make kernels                      compile every GPU kernel for sm_80, sm_90 and, if it can be, gfx942 (no GPU needed)
#   make clients                      install the clients of docs/clients.md, run them and renew the page
#   make architecture                 draw docs/architecture.svg from the imports, and count the path of a request
#   make docs                         build the site of the documentation into build/site, with every link checked
#   make vendor                       fetch the libraries of the chat page from npm again (web/page/vendor/README.md)
#   make clean                        forget .venv and everything built

SHELL := /bin/bash
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
HOUSE := tests/test_house.py tests/test_types.py
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Images of containers set it: each of the hundred servers in the tests would compile anew all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve test test-arm64 test-amx check lint mypy basedpyright house bench kernels clients architecture docs vendor clean

serve: .venv/.serve
	@exec $(BIN)/triolet serve $(ARGS)

# Tests that wait leave cores idle: three processes on two cores take 5 % less time than two.
test: check
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder $(or $(ARGS),$(HOUSE:%=--ignore=%))

# ARGS: of the CPUs in tests/arm64/__main__.py, those to emulate.
test-arm64: .venv/.serve .venv-arm64/.installed
	$(BIN)/python -m tests.arm64 $(ARGS)

test-amx: .venv/.test .venv-amx/.installed
	$(BIN)/python -m tests.amx

# Each type checker takes a minute of one core: two at a time.
check: .venv/.test
	@$(MAKE) --no-print-directory --jobs 2 --output-sync mypy basedpyright lint house

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

mypy basedpyright: .venv/.test
	$(BIN)/$@

house: .venv/.test
	$(BIN)/pytest -q $(HOUSE)

bench: .venv/.serve
	@peers=$$($(if $(REF),$(BIN)/python loadtest/peers/setup.py $(REF) --only-print,:) | tr '\n' ' '); \
	eval "exec $(BIN)/triolet bench peers $(if $(REF),$(REF)/hf) $$peers" '$(ARGS)'

kernels: .venv/.test
	$(BIN)/python -m triolet.loadtest.device.compile_kernels --processes 2 $(ARGS)

clients: .venv/.test .venv-clients/.installed .venv-clients/.lm-eval .venv-clients/.open-webui \
    .venv-clients/.openai-2
	$(BIN)/python -m tests.clients

architecture: .venv/.test
	$(BIN)/python -m tests.architecture $(ARGS)

docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

vendor:
	web/page/vendor/renew.sh

clean:
	rm -rf .venv .venv-amx .venv-arm64 .venv-clients tests/clients/node_modules build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Serving needs no torch: its environment is there in well under a minute. The tests compare with torch and
# transformers and drive real clients, so theirs is larger, and Python compiles of it what it imports. A stamp is renewed
# when what to install changes.
.venv/.serve: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what serving needs into .venv (once; no torch)…"
	@$(PIP) install --constraint constraints.txt --editable .
	@touch $@

.venv/.test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what the tests need into .venv (once; torch among it, so this takes a few minutes)…"
	@$(PIP) install --no-compile --constraint constraints.txt --editable '.[test]'
	@touch .venv/.serve $@

.venv/.docs: pyproject.toml constraints.txt | $(BIN)/python
	@$(PIP) install --constraint constraints.txt $$($(BIN)/python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

# Exact versions of everything, so pip has nothing to work out. LiteLLM wants an older openai than the others.
.venv-clients/.installed: tests/clients/requirements.txt tests/clients/requirements-litellm.txt tests/clients/package-lock.json
	@echo "Installing clients of other projects into .venv-clients and tests/clients/node_modules…"
	@install() { $(PYTHON) -m venv .venv-clients/$$1 && .venv-clients/$$1/bin/python -m pip --disable-pip-version-check \
	  --quiet install --no-deps --no-compile --requirement tests/clients/$$1.txt; }; \
	install requirements & first=$$!; install requirements-litellm & second=$$!; \
	npm ci --prefix tests/clients --silent --no-fund --no-audit && wait $$first && wait $$second
	@touch $@

# 220 to 770 MB, so apart: continuous integration does without. Open WebUI needs Python 3.11 or 3.12. In `openai-2` are
# clients that want versions before 3 of OpenAI's.
.venv-clients/.%: tests/clients/requirements-%.txt
	@$(PYTHON) -m venv .venv-clients/requirements-$*
	@.venv-clients/requirements-$*/bin/python -m pip --disable-pip-version-check --quiet install --no-deps \
	  --no-compile --requirement $<
	@touch $@

.venv-arm64/.installed: tests/arm64/install.sh tests/arm64/requirements.txt constraints.txt | $(BIN)/python
	@echo "Unpacking a Python for AArch64 into .venv-arm64…"
	@tests/arm64/install.sh .venv-arm64 $(BIN)/python
	@touch $@

.venv-amx/.installed: tests/amx/install.sh tests/amx/correct_bochs.py tests/arm64/install.sh tests/arm64/requirements.txt constraints.txt | $(BIN)/python
	@echo "Making a PC with AMX in .venv-amx…"
	@tests/amx/install.sh .venv-amx $(BIN)/python
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Triolet needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	@echo "Making the virtual environment .venv…"
	@$(PYTHON) -m venv .venv
