# `make demo` and `make test` do all their own set-up; nothing else needs to be installed but Python >= 3.11.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean

demo: .venv/ready
	$(BIN)/dept demo

test: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# uv resolves torch and torchvision together (they must come from one place) and shares its cache.
.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[dev]'
	touch $@

clean:
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache
