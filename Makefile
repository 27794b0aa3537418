# make demo    train FedAvg and FedACD on scikit-learn's digits, compare them, write a report
# make test    every check: format, lint, types, tests
# make install-flower   fedacd with Flower, in an environment of its own
# make test-flower      the deployment, with real processes, in that environment
# make flower-equality  every method deployed beside its simulation
# make flower-faults    20 rounds with sites that die and sleep, and servers that are killed
# make flower-overhead  seconds per round beside Flower's own FedAvg, at 1, 4 and 8 sites (SITES="1 4 8")
# They make .venv and .venv-flower and install pinned versions where they are missing.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
FLOWER := .venv-flower/bin
FLOWER_INSTALLED := .venv-flower/installed
SITES ?= 1 4 8

export FLWR_TELEMETRY_ENABLED := 0

.PHONY: demo test test-flower flower-equality flower-faults flower-overhead install install-flower clean

demo: $(INSTALLED)
	$(BIN)/fedacd sweep --dataset digits --method fedavg,fedacd --clients 20 --beta 0.1 \
		--rounds 30 --batch-size 16 --lr 0.05 --no-mixup --out runs/demo
	$(BIN)/fedacd report runs/demo -o runs/demo/report.html

test: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto --maxprocesses 4 --dist worksteal

test-flower: $(FLOWER_INSTALLED)
	$(FLOWER)/pytest tests/flower

flower-equality: $(FLOWER_INSTALLED)
	FEDACD_ALL=1 $(FLOWER)/pytest -s tests/flower/test_equality.py

flower-faults: $(FLOWER_INSTALLED)
	FEDACD_ROUNDS=20 $(FLOWER)/pytest -s tests/flower/test_faults.py -k "sites_that_die or killed"

flower-overhead: $(FLOWER_INSTALLED)
	$(FLOWER)/python -m tests.flower.overhead $(SITES)

install: $(INSTALLED)

install-flower: $(FLOWER_INSTALLED)

# torch comes first and alone, at its pinned version, so that no other package's range decides which build is fetched.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedacd needs Python 3.11 or later")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# Flower wants older versions of typer and rich than constraints.txt has, so it lives apart.
$(FLOWER_INSTALLED): pyproject.toml constraints-flower.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedacd needs Python 3.11 or later")'
	$(PYTHON) -m venv .venv-flower
	$(FLOWER)/pip install --quiet --constraint constraints-flower.txt torch
	$(FLOWER)/pip install --quiet --constraint constraints-flower.txt --editable '.[flower,flower-dp]' \
		pytest pytest-timeout hypothesis
	touch $@

clean:
	rm -rf .venv .venv-flower .mypy_cache .pytest_cache .ruff_cache .hypothesis
