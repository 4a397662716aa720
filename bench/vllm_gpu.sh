#!/usr/bin/env bash
# What no CPU can show: weights by NCCL, tensor parallelism, FP8. Needs two GPUs or more.
#   bench/vllm_gpu.sh MODEL_FOLDER            # in .venv; vLLM in .vllm-gpu
#   SERVER_GPUS=2 VLLM_EXTRA="--tensor-parallel-size 2" bench/vllm_gpu.sh MODEL_FOLDER
#   VLLM_EXTRA="--quantization fp8" GAP=1 bench/vllm_gpu.sh MODEL_FOLDER
# The trainer has GPU 0, the server the others. Ends with the largest difference between the server's logprobs and
# the trainer's after each of a few updates, and with 1 if one is above GAP (bfloat16: 0.1).
set -euo pipefail
cd "$(dirname "$0")/.."
model=$1
python=${LONGREIN_VLLM_PYTHON:-.vllm-gpu/bin/python}
if [ ! -x "$python" ]; then
	python3 -m venv .vllm-gpu
	.vllm-gpu/bin/python -m pip install -q vllm==0.32.0
fi
CUDA_VISIBLE_DEVICES=0 .venv/bin/python bench/vllm_gpu.py "$model" --python "$python" --gap "${GAP:-0.1}" -- ${VLLM_EXTRA:-}
