# make train: the main job. make test: every check but the long ones: make test-mutants breaks the code in every way that
# a test must notice, make test-agents has the real agents work, make test-vllm trains with a real vLLM server,
# make test-openenv runs OpenEnv itself. Each sets up what it needs in .venv, .trl, .agents, .vllm and .openenv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN ?= examples/smollm2/run.toml
ARGS ?=
# Two files of tests beside each other, but for those that look at all of the machine's sandboxes; ARGS=-n0 takes one test after another.
BESIDE := -n 2 --dist loadfile
OF_UNIT := not agents and not mutant and not trl and not harbor and not vllm and not openenv

.PHONY: train test test-random test-agents test-mutants test-vllm lint types layers unit model clean

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

unit: $(VENV)/.ready opencode
	$(BIN)/python -m pytest $(BESIDE) --ignore=tests/sandboxes -m 'not alone and $(OF_UNIT)' $(ARGS)
	$(BIN)/python -m pytest --ignore=tests/sandboxes -m 'alone and $(OF_UNIT)' $(ARGS)
	$(BIN)/python -m pytest tests/sandboxes $(ARGS)

# The property tests with other random examples at every run; no part of CI, which must say the same of the same commit.
test-random: $(VENV)/.ready
	$(BIN)/python -m pytest -m 'hypothesis and not mutant and not agents' --hypothesis-profile=random tests $(ARGS)

test-mutants: $(VENV)/.ready
	$(BIN)/python -m pytest -m mutant tests/mutants $(ARGS)

# A real vLLM server on the CPU as the engine. Its first run installs vLLM (3.4 GB, minutes).
test-vllm: $(VENV)/.ready vllm
	$(BIN)/python -m pytest -m vllm tests/engines/vllm $(ARGS)

# Minutes of real agents' binaries in their sandboxes.
test-agents: $(VENV)/.ready agents
	$(BIN)/python -m pytest $(BESIDE) -m agents tests $(ARGS)

# constraints.txt holds every version, and torch's CPU build: pip refuses rather than fetch gigabytes of CUDA.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[train,plot,gguf,dev]'
	touch $@

include agents.mk vllm.mk openenv.mk integrations.mk

model: $(VENV)/.ready
	$(BIN)/python examples/smollm2/fetch.py models/smollm2

clean:
	rm -rf $(VENV) $(VLLM) $(TRL) $(HARBOR) $(OPENENV) .agents runs
