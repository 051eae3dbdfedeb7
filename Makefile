# Two commands on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check format chaos fuzz clean

demo: $(VENV)/demo
	$(BIN)/argosy demo --dir runs/demo

test: $(VENV)/dev
	$(BIN)/python -m pytest -q -n 2

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	cd benchmarks && $(abspath $(BIN))/mypy --config-file= --ignore-missing-imports *.py
	$(BIN)/python -m pytest -q tests/test_architecture.py

chaos: $(VENV)/dev
	$(BIN)/python benchmarks/chaos.py --json
	$(BIN)/python benchmarks/chaos.py --runs 100 --driver-kills 0 --moves --json
	$(BIN)/python benchmarks/chaos.py --runs 0 --driver-kills 0 --edges 100 --json
	$(BIN)/python benchmarks/chaos_groups.py --json

fuzz: $(VENV)/dev
	$(BIN)/python benchmarks/fuzz.py --json

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/pip:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/demo: $(VENV)/pip pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt "torch==2.13.0"
	$(BIN)/pip install -q -c constraints.txt -e ".[demo]"
	touch $@

$(VENV)/dev: $(VENV)/demo
	$(BIN)/pip install -q -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) runs
