# make demo   installs, builds the embedded world, unlearns it eight ways, audits the results
# make test   installs, runs the fast tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The environment is rebuilt when what it is made from changes.
READY := $(VENV)/ready
# Threads are set on purpose: two contending ones can be seventy times slower than one.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export HF_HUB_OFFLINE ?= 1

.PHONY: setup demo test test-all check bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt setuptools
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[hub,lora,report,judge,quant,gguf,ray,dev]'
	touch $(READY)

demo: setup
	$(BIN)/python examples/demo.py --out demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-all: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'slow or not slow'

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) demo build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
