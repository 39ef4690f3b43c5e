# Every command of the repository; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
# Where Python may keep nothing that it compiles, each of the processes that tests start compiles anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
MODEL ?= smollm2-135m
# Keys and values in a byte: four times as many sequences as in fp32. Weights in a byte, too, where the processor has a
# unit that multiplies such. README states the loss of both.
SERVE ?= --kv-cache-dtype int8 --quantization fast
JOBS ?= 2
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALL := -m pip install --quiet --disable-pip-version-check

# Generated code pins its runtime: stubs of an old generator run on old and new protobuf, those of a new one do not.
GRPCIO_TOOLS := 1.71.2
MYPY_PROTOBUF := 3.6.0
PROTO_VENV := .venv-proto
PROTO_STAMP := $(PROTO_VENV)/.grpcio-tools-$(GRPCIO_TOOLS)-mypy-protobuf-$(MYPY_PROTOBUF)
PROTO_OUT ?= shared
PUBLIC_PROTO := hundredfold/v1

PYTHON_CODE := shared services plugins tests deploy
TYPED_CODE := shared/hundredfold services plugins

.PHONY: help
help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 18

.PHONY: install
install: $(VENV)/.installed ## what `up` installs, and nothing more

.PHONY: install-test
install-test: $(VENV)/.installed-test ## what `test` installs, and nothing more

.PHONY: up
up: $(VENV)/.installed ## install, fetch the model, serve it and show one answer; MODEL=name-or-path, Ctrl-C drains
	@if [[ ! -e "$(MODEL)" ]]; then $(BIN)/hundredfold models pull "$(MODEL)"; fi
	@exec $(BIN)/hundredfold serve --model "$(MODEL)" $(SERVE) --sample

.PHONY: test
test: lint-format lint-imports lint-protos ## lint and every test, fast ones first; ARGS='-k name' is handed to pytest
	@# Types take a minute of one core: they are looked at while pytest reads its tests, and told of at the end.
	@mkdir -p build
	$(BIN)/mypy $(TYPED_CODE) >build/types.log 2>&1 & types=$$!; \
	  failed=0; $(BIN)/python -m pytest -n $(JOBS) $(ARGS) || failed=$$?; \
	  wait $$types || failed=$$?; cat build/types.log; exit $$failed

.PHONY: test-fast
test-fast: $(VENV)/.installed-test ## the tests that need no running service and no model
	$(BIN)/python -m pytest -n $(JOBS) tests/unit tests/contract tests/property $(ARGS)

.PHONY: lint
lint: lint-tools ## formatting, types, imports, protos and the house rules; `make -k lint` does not stop at the first
	$(BIN)/python -m pytest tests/unit/house

.PHONY: lint-tools lint-format lint-types lint-imports lint-protos
lint-tools: lint-format lint-types lint-imports lint-protos

lint-format: $(VENV)/.installed-test
	$(BIN)/ruff check $(PYTHON_CODE)
	$(BIN)/ruff format --check $(PYTHON_CODE)

lint-types: $(VENV)/.installed-test
	$(BIN)/mypy $(TYPED_CODE)

lint-imports: $(VENV)/.installed-test
	PYTHONPATH=shared:services:plugins $(BIN)/lint-imports --no-cache

lint-protos: $(VENV)/.installed-test
	$(BIN)/buf lint proto
	$(BIN)/buf format --diff --exit-code proto
	$(BIN)/buf breaking proto --against proto/baseline.binpb

.PHONY: format
format: $(VENV)/.installed-test ## rewrite Python and protos in the house's format
	$(BIN)/ruff check --fix $(PYTHON_CODE)
	$(BIN)/ruff format $(PYTHON_CODE)
	$(BIN)/buf format --write proto

.PHONY: native
native: | $(BIN)/python ## compile the kernels anew into an installed .venv, without asking pip for anything else
	$(BIN)/python $(INSTALL) --no-deps -e .

.PHONY: proto
proto: $(PROTO_STAMP) ## regenerate the stubs from proto/
	PATH="$(CURDIR)/$(PROTO_VENV)/bin:$$PATH" python -m grpc_tools.protoc -I proto \
	  --python_out=$(PROTO_OUT) --grpc_python_out=$(PROTO_OUT) --mypy_out=$(PROTO_OUT) --mypy_grpc_out=$(PROTO_OUT) \
	  $$(cd proto && find hundredfold -name '*.proto' | sort)

.PHONY: proto-baseline
proto-baseline: $(VENV)/.installed-test ## at a release: what `buf breaking` compares the public protos with
	$(BIN)/buf build proto --path proto/$(PUBLIC_PROTO) --as-file-descriptor-set --exclude-source-info -o proto/baseline.binpb

.PHONY: constraints
constraints: ## pin today's versions of everything, to be tested and committed
	$(PYTHON) -m venv --clear build/constraints
	build/constraints/bin/python $(INSTALL) -e '.[all,test]'
	{ head -n 1 constraints.txt; build/constraints/bin/python -m pip freeze --exclude-editable | sed 's/+cpu$$//'; } >build/constraints.txt
	mv build/constraints.txt constraints.txt
	rm -rf build/constraints

.PHONY: clients
clients: $(VENV)/.installed-test ## foreign clients (OpenAI's, lm-eval, aiperf, C++, buf) against a running server; ARGS=NAME
	PYTHONPATH=tests $(BIN)/python -m clients.run $(ARGS)

.PHONY: bench-check
bench-check: $(VENV)/.installed ## speed against stored ratios of this kind of machine; ARGS=--update stores new ones
	$(BIN)/hundredfold bench check --ratios tests/speed.json $(ARGS)

.PHONY: profile
profile: $(VENV)/.installed-test ## CPU of scheduler, door and client per step and per token; ARGS='--streams 64 --py-spy', or --real
	$(BIN)/python tests/profiling/profile_stack.py $(ARGS)

.PHONY: bench-goals
bench-goals: $(VENV)/.installed-test ## latencies, delivery, prefix, speculation against their goals; ARGS='--only prefix'
	$(BIN)/python tests/profiling/goals.py $(ARGS)

.PHONY: soak
soak: $(VENV)/.installed-test ## 20 minutes of load: whether a service's memory grows; ARGS='--minutes 5'
	$(BIN)/python tests/profiling/soak.py $(ARGS)

.PHONY: emulate
emulate: ## AVX-512 kernels by emulated intrinsics against the portable ones; needs AVX2 and a C++ compiler
	$(MAKE) -C tests/emulation

.PHONY: bench-peers
bench-peers: $(VENV)/.installed-test ## vLLM, llama.cpp, OpenVINO and transformers beside us, each in an environment of its own
	PYTHONPATH=tests $(BIN)/python -m peers.run $(ARGS)

.PHONY: docker-test
docker-test: $(VENV)/.installed ## build the images, start the Compose stack in a real engine and talk to it
	deploy/docker/test.sh

.PHONY: clean
clean: ## remove what the commands above made, models aside
	rm -rf $(VENV) $(PROTO_VENV) build dist node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "hundredfold needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Stamps: pip runs only when what it would install has changed. Python files are used where they lie, C++ is compiled.
NATIVE := $(wildcard plugins/hundredfold_cpu/native/*)

$(VENV)/.installed: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	@echo "installing hundredfold into $(VENV), once"
	$(BIN)/python $(INSTALL) -c constraints.txt -e '.[all]'
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	@echo "installing hundredfold and its test tools into $(VENV), once"
	$(BIN)/python $(INSTALL) -c constraints.txt -e '.[all,test]'
	@touch $(VENV)/.installed $@

$(PROTO_STAMP):
	$(PYTHON) -m venv --clear $(PROTO_VENV)
	$(PROTO_VENV)/bin/python $(INSTALL) grpcio-tools==$(GRPCIO_TOOLS) mypy-protobuf==$(MYPY_PROTOBUF)
	@touch $@
