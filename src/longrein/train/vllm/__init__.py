"""The trainer's end of vLLM servers: weights by folder, by what changed, as adapters, or by NCCL."""
