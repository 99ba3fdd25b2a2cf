# Two commands do everything: `make start` (set-up and a first tour), `make test` (all tests).
# TORCH_INDEX=ADDRESS takes torch from there: README.md says where to find the one without CUDA.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
MAINTAINER := $(VENV)/.maintainer
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
# Hundreds of processes start below, and each would compile anew what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: start test proof book pictures monitoring setup maintainer lock lint build reference clean-environment

start: setup
	$(BIN)/python -m grader.student.tour

test: maintainer lint
	$(BIN)/python -m tests.system_tools
	$(BIN)/python -m pytest tests -m "not proof" -n 2 -q --dist loadgroup --durations=25

# What takes too long for `make test`: goes on where it stopped, and leaves out what is proved.
proof: maintainer
	$(BIN)/python -m tests.system_tools
	$(BIN)/python -m tests.proof

# The handouts as a site: build/book/html/index.html.
book: maintainer
	$(BIN)/python -m docs.book

# The README's pictures: the dashboard under load, and a terminal with `lab watch`.
pictures: maintainer
	$(BIN)/python -m docs.pictures

# Prometheus and Alertmanager beside a server that runs: make monitoring SERVER=127.0.0.1:8000.
SERVER ?= 127.0.0.1:8000
monitoring: maintainer
	$(BIN)/python -m tests.system_tools
	$(BIN)/python -m monitoring.run --server $(SERVER) $(PORTS)

# What a student needs.
setup: $(READY)

$(READY): requirements.txt constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; run: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing the course's packages into $(VENV) (once, a few minutes) ..."
	@test -z "$(TORCH_INDEX)" || $(PIP) install --index-url "$(TORCH_INDEX)" \
		"$$(grep '^torch==' requirements.txt)"
	$(PIP) install --requirement requirements.txt --constraint constraints.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

# The rest: what instructors need to grade, and maintainers to test.
maintainer: $(MAINTAINER)

$(MAINTAINER): $(READY)
	@echo "Installing what maintainers need besides ..."
	$(PIP) install "pip>=25.1"  # older ones know no groups
	$(PIP) install --group maintainer --constraint constraints.txt
	@touch $@

# After a change of a version: what is installed now is what everybody gets.
lock: maintainer
	$(PIP) freeze --exclude-editable | sed 's/+cpu$$//' > constraints.txt

lint: maintainer
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright solutions/nanovllm grader models benchmarks
	cd solutions && ../$(BIN)/lint-imports --config ../pyproject.toml
	$(BIN)/python -m grader build --check

build: maintainer
	$(BIN)/python -m grader build

reference: setup
	$(BIN)/python -m pytest labs --reference

clean-environment:
	rm -rf $(VENV)
