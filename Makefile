# make demo    train FedAvg and FedACD on scikit-learn's digits, compare them, write a report
# make test    every check: format, lint, types, tests
# Both make .venv and install pinned versions where they are missing.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: demo test install clean

demo: $(INSTALLED)
	$(BIN)/fedacd sweep --dataset digits --method fedavg,fedacd --clients 20 --beta 0.1 \
		--rounds 30 --batch-size 16 --lr 0.05 --out runs/demo
	$(BIN)/fedacd report runs/demo -o runs/demo/report.html

test: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest

install: $(INSTALLED)

# torch comes first and alone, at its pinned version, so that no other package's range decides which build is fetched.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedacd needs Python 3.11 or later")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
