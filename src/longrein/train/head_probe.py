"""What a model does with its output head's result, found by watching it."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from typing import Any, cast

import msgspec
import torch
from torch import Tensor, nn

from longrein.train.token_logprob import UNCHANGED, Capped, LogitMap, Scaled

TINY, HUGE = 1e-12, 1e8
"""Where a soft cap is a line, and where it is flat."""


class NoHead(msgspec.Struct, frozen=True, kw_only=True):
    """No module is called once for all logits."""

    reason: str


class KnownHead(msgspec.Struct, frozen=True, kw_only=True):
    """Logits are an elementwise function, that we know, of what a module returns."""

    module: nn.Module
    vocab_size: int
    mapping: LogitMap


class ReworkedHead(msgspec.Struct, frozen=True, kw_only=True):
    """Logits are something else of what a module returns."""

    module: nn.Module


def probe_head(model: nn.Module) -> NoHead | KnownHead | ReworkedHead:
    """Run ``model`` once over two tokens, with known numbers in place of what its head returns.

    The head may be of any class: one with adapters around it is one. The numbers are float64 whatever the model's
    dtype, so that scales and caps are read exactly.
    """
    head = cast(Any, model).get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if not isinstance(head, nn.Module):
        return NoHead(reason="it names no output head")
    probes: list[Tensor] = []

    def replace(_head: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        probes.append(_probe(output))
        return probes[0]

    device = next(model.parameters()).device
    with torch.no_grad(), head.register_forward_hook(replace):
        logits = model(input_ids=torch.zeros((1, 2), dtype=torch.int64, device=device), use_cache=False).logits
    if len(probes) != 1:
        return NoHead(reason=f"its output head was called {len(probes)} times, not once")
    mapping = _mapping(probes[0], logits) if logits.shape == probes[0].shape else None
    if mapping is None:
        return ReworkedHead(module=head)
    return KnownHead(module=head, vocab_size=logits.shape[-1], mapping=mapping)


def _probe(output: Tensor) -> Tensor:
    """``[1, 2, vocabulary]``: a ramp, and numbers by which a scale and a cap can be read."""
    size = output.shape[-1]
    ramp = torch.linspace(-100, 100, size, device=output.device, dtype=torch.float64)
    extremes = torch.full_like(ramp, TINY)
    extremes[1::2] = HUGE
    return torch.stack([ramp, extremes]).expand(*output.shape[:-2], 2, size)


def _mapping(probe: Tensor, logits: Tensor) -> LogitMap | None:
    """Each hypothesis must hold for every number, or it is none."""
    found = logits.to(torch.float64)
    if torch.equal(logits, probe.to(logits.dtype)):
        return UNCHANGED
    scale, cap = float(found[0, 1, 0]) / TINY, float(found[0, 1, 1])
    if not (math.isfinite(scale) and math.isfinite(cap) and scale > 0 and cap > 0):
        return None
    hypotheses: tuple[LogitMap, ...] = (Scaled(factor=scale), Capped(inner=scale / cap, outer=cap))
    tolerance = 100 * torch.finfo(logits.dtype).eps
    fits = (one for one in hypotheses if torch.allclose(one.of(probe), found, rtol=tolerance, atol=0.0))
    return next(fits, None)
