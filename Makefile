# `make demo` and `make test` do all their own set-up; nothing else needs to be installed but Python >= 3.11.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint docs clean

demo: .venv/ready
	$(BIN)/dept demo

test: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# uv resolves torch and torchvision together (they must come from one place) and shares its cache. With `auto` it asks
# PyTorch's own index, which has a build for machines without a GPU. PyPI has only the one with the CUDA packages.
INSTALL = $(BIN)/uv pip install --quiet --python $(BIN)/python
FROM_PYPI = Installing torch from PyPI, because PyTorch's own index cannot be used. \
	On Linux this brings the CUDA packages: 3 GB to download, 5 GB on disk.

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet uv
	$(INSTALL) --torch-backend $${UV_TORCH_BACKEND:-auto} -e '.[dev]' 2> /dev/null \
		|| { echo "$(FROM_PYPI)"; unset UV_TORCH_BACKEND; $(INSTALL) -e '.[dev]'; }
	touch $@

clean:
	rm -rf .venv runs site .pytest_cache .mypy_cache .ruff_cache
