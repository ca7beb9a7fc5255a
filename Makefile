# Everything needs Python 3.11 or newer and nothing else: no GPU, no model download.
#   make demo    install, run the smoke suite on CPU, build the site
#   make test    install with the test extra, run the whole test suite
#   make test-toy  every training algorithm learns what it is paid for (minutes; not part of make test)
#   make lint    ruff
# Options: PYTHON=python3.12, VENV=/elsewhere, JOBS=4, PYTEST_ARGS="-m 'not slow'". A plain pip on Linux fetches the CUDA
# build of torch; TORCH_ARGS="--index-url https://download.pytorch.org/whl/cpu" takes the much smaller CPU build.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
TORCH_ARGS ?=
PYTEST_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt

# One thread per process: the jobs and their workers already fill the cores, and sums keep their order.
export OMP_NUM_THREADS := 1
# tokenizers warns when a process that has used it forks.
export TOKENIZERS_PARALLELISM := false

.PHONY: help demo test test-toy lint
.DELETE_ON_ERROR:

help:
	@sed -n '2,7s/^# //p' Makefile

demo: $(VENV)/.installed
	$(BIN)/dare-bench run suites/smoke.yaml --jobs $(JOBS)
	$(BIN)/dare-bench publish
	@test -f site/index.html
	@echo "Leaderboard: file://$(CURDIR)/site/index.html"

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

test-toy: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m toy tests/dare/algorithms/toy

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The stamps are written last, so an interrupted install is taken up again and a finished one is re-used.
$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	$(PIP) $(TORCH_ARGS) "$$(grep '^torch==' constraints.txt)"
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) -e '.[test]' 'setuptools>=77'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-test
	$(PIP) -e '.[dev]'
	@touch $@

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "dare-bench needs Python 3.11 or newer, $(PYTHON) is older or missing; try make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@
