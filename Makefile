# Two commands do everything: `make start` (set-up and a first tour), `make test` (all tests).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
# Hundreds of processes start below, and each would compile anew what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: start test proof setup lint build reference clean-environment

start: setup
	$(BIN)/python -m grader.student.tour

test: setup lint
	$(BIN)/python -m tests.system_tools
	$(BIN)/python -m pytest tests -m "not proof" -n 2 -q --dist loadgroup --durations=25

# What takes too long for `make test`: goes on where it stopped, and leaves out what is proved.
proof: setup
	$(BIN)/python -m tests.system_tools
	$(BIN)/python -m tests.proof

setup: $(READY)

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; run: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@echo "Installing the course's packages into $(VENV) (once, a few minutes) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --editable .
	@touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright solutions/nanovllm grader models benchmarks
	cd solutions && ../$(BIN)/lint-imports --config ../pyproject.toml
	$(BIN)/python -m grader build --check

build: setup
	$(BIN)/python -m grader build

reference: setup
	$(BIN)/python -m pytest labs --reference

clean-environment:
	rm -rf $(VENV)
