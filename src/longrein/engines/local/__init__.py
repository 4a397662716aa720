"""The embedded engine: a ``transformers`` causal LM in its own process.

Import :mod:`.process` where the weights are, :mod:`.client` (no torch) where the rollouts are.
"""
