# The two commands for a fresh machine are `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test quick long check docs format chaos fuzz simulate pins newest clean

demo: $(VENV)/demo
	$(BIN)/argosy demo --dir runs/demo

# Let idle OpenMP threads sleep: otherwise those of one test spin on the cores that another test needs.
test quick long newest: export OMP_WAIT_POLICY = passive

test: $(VENV)/dev
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not long"

long: $(VENV)/dev
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m long

quick: $(VENV)/dev
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m quick

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	cd benchmarks && $(abspath $(BIN))/mypy --config-file= --ignore-missing-imports *.py
	$(BIN)/python -m pytest -q tests/test_architecture.py

docs: $(VENV)-docs/done
	$(VENV)-docs/bin/python tests/site_pages.py build/pages
	$(VENV)-docs/bin/mkdocs build --strict

chaos: $(VENV)/dev
	$(BIN)/python benchmarks/chaos.py --json
	$(BIN)/python benchmarks/chaos.py --runs 100 --driver-kills 0 --moves --json
	$(BIN)/python benchmarks/chaos.py --runs 0 --driver-kills 0 --edges 100 --json
	$(BIN)/python benchmarks/chaos_groups.py --json

fuzz: $(VENV)/dev
	$(BIN)/python benchmarks/fuzz.py --json

simulate: $(VENV)/dev
	cd tests && $(abspath $(BIN))/python -m simulation --json

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/pip:
	$(PYTHON) -m venv $(VENV)
	touch $@

# No build isolation, which would fetch the newest setuptools for the editable install.
$(VENV)/demo: $(VENV)/pip pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt setuptools torch
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e ".[demo]"
	touch $@

$(VENV)/dev: $(VENV)/demo
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e ".[dev]"
	touch $@

# A separate environment, because the site and the package need nothing of each other.
$(VENV)-docs/done: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/pip install -q -c constraints.txt mkdocs
	touch $@

# The newest version of everything but torch, whose pin is changed by hand.
$(VENV)-newest: FORCE
	$(PYTHON) -m venv --clear $@
	grep "^torch==" constraints.txt > $@/torch.txt
	$@/bin/pip install -q -c $@/torch.txt setuptools torch
	$@/bin/pip install -q -c $@/torch.txt --no-build-isolation -e ".[dev,docs,ray]"
	$@/bin/pip freeze --all --exclude pip --exclude-editable | sed "s/+cpu$$//" > $@/pins.txt

pins: $(VENV)-newest
	cp $(VENV)-newest/pins.txt constraints.txt

newest: $(VENV)-newest
	-diff constraints.txt $(VENV)-newest/pins.txt
	$(VENV)-newest/bin/python -m pytest -q -n 2 --dist worksteal

FORCE:

clean:
	rm -rf $(VENV) $(VENV)-newest $(VENV)-docs build runs
