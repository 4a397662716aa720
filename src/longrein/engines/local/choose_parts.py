"""Chooses how the parts of the fused pass are computed."""

from __future__ import annotations

import logging

import torch

from longrein.engines.local.parts import Parts, TorchParts

_LOG = logging.getLogger(__name__)


def fastest_parts(dtype: torch.dtype, device: torch.device) -> Parts:
    """Compiled loops on a CPU where numba is installed, else torch's operators."""
    if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16):
        return TorchParts()
    try:
        from longrein.engines.local.kernels.parts import CompiledParts
    except ImportError as error:
        _LOG.warning("norms and attention are computed by torch's operators, slower: %s; pip install numba", error)
        return TorchParts()
    return CompiledParts()
