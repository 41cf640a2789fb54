# Two commands do everything: `make demo` and `make test`. Both set up .venv on first use; `make docs` builds the site.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: demo test quick campaign lowest torch-names check house docs clean
.DELETE_ON_ERROR:

demo: .venv/installed
	$(BIN)/gnnplace demo

test: check
	$(BIN)/python -m gnnplace.placing.warming
	$(BIN)/python -m tests.house
	$(BIN)/python -m pytest -n 2 -m "not alone and not campaign" --durations=10 --keep-durations
	$(BIN)/python -m pytest -m "alone and not campaign"
	$(BIN)/python -m pytest benchmarks/micro --benchmark-disable

# At every save: below a minute, the tests nearest to what changed.
quick: .venv/installed
	$(BIN)/python -m tests.quick

campaign: .venv/installed
	$(BIN)/python -m pytest -n 2 -m campaign --timeout 1800

# The lowest versions that pyproject.toml declares, in an environment of their own: some ten minutes.
lowest: .venv/installed
	$(BIN)/python -m tests.lowest

# Names of torch's own that the package needs, looked up in the sources of other versions: TORCH="2.12.1 2.14.1".
torch-names: .venv/installed
	$(BIN)/python -m tests.torch_sources $(TORCH)

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What may only fall, room by room, against house.json, and where to begin; `python -m tests.house --lower` writes what fell.
house: .venv/installed
	$(BIN)/python -m tests.house

docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.venv/installed-docs: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("gnnplace needs Python 3.11 or later; found " + sys.version.split()[0] + " (set PYTHON=...)") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev,dask,peers,postgres]'
	$(BIN)/python -m gnnplace.placing.warming
	touch $@

clean:
	rm -rf .venv site
