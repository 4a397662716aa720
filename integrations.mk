# Tests with other projects' own code, each in a virtual environment that it does not share with ours.
TRL := .trl
HARBOR := .harbor
TEST_TOOLS := hypothesis openai psutil pytest pytest-asyncio
# Harbor needs Python 3.12.
NEWER_PYTHON = $(firstword $(shell for python in python3.13 python3.12 python3 $$HOME/.pyenv/versions/3.1[2-9]*/bin/python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && echo $$python; done))

.PHONY: test-trl test-harbor

# TRL's own trainer, on our rollouts.
test-trl: $(TRL)/.ready
	$(TRL)/bin/python -m pytest -m trl tests/integrations/trl $(ARGS)

# Harbor's own trials on our sandboxes, and its environments as ours. Without a Python for it, these are skipped, and counted.
test-harbor: $(if $(NEWER_PYTHON),$(HARBOR),$(VENV))/.ready
	$(if $(NEWER_PYTHON),$(HARBOR),$(VENV))/bin/python -m pytest -m harbor tests/integrations/harbor $(ARGS)

$(TRL)/.ready: pyproject.toml constraints.txt integrations.mk
	$(PYTHON) -m venv $(TRL)
	$(TRL)/bin/python -m pip install -q -c constraints.txt -e '.[trl]' $(TEST_TOOLS)
	touch $@

$(HARBOR)/.ready: pyproject.toml constraints-harbor.txt integrations.mk
	$(NEWER_PYTHON) -m venv $(HARBOR)
	$(HARBOR)/bin/python -m pip install -q -c constraints-harbor.txt -e '.[harbor]' $(TEST_TOOLS)
	touch $@
