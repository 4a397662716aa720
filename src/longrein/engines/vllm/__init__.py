"""vLLM as the engine: a client, what a server must have, its weights' versions, and servers that we start ourselves.

Nothing here imports torch. What writes or sends tensors is :mod:`longrein.train.vllm`.
"""
