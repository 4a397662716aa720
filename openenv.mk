# OpenEnv's own classes and servers, beside ours, in a virtual environment of its own: it sees all of .venv, and holds
# only what OpenEnv needs besides or in another version.
OPENENV := .openenv
OPENENV_VERSION := 0.10.0
PURELIB := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

.PHONY: test-openenv

test-openenv: $(OPENENV)/.ready
	$(OPENENV)/bin/python -m pytest -m openenv tests/openenv $(ARGS)

$(OPENENV)/.ready: openenv.mk tests/openenv/constraints.txt $(VENV)/.ready
	$(PYTHON) -m venv --clear $(OPENENV)
	echo "import site; site.addsitedir('$$($(BIN)/python $(PURELIB))')" > $$($(OPENENV)/bin/python $(PURELIB))/zz_longrein.pth
	$(OPENENV)/bin/python -m pip install -q -c tests/openenv/constraints.txt openenv==$(OPENENV_VERSION)
	touch $@
