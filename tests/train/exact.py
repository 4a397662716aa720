"""Models of the library that compute in float64 throughout, and rows that share beginnings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from longrein.train.batch import share_step
from longrein.train.gradient import StepTotals, add_gradient
from longrein.train.objective import Objective
from longrein.train.packing import Packing
from longrein.train.score import scorer_for
from longrein.types import Row
from tests import tiny
from tests.train.toy import row

VOCAB = 264
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    # SmolLM2 is a llama with an odd number of heads and shared embeddings.
    "smollm2": {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "gemma": {"head_dim": 16},
    "gpt_neox": {},
}


def exact_model(name: str, **changes: Any) -> Any:
    """A random model in float64. RMS norms of the library compute in float32, which alone makes errors of 1e-7."""
    torch.manual_seed(0)
    family = "llama" if name == "smollm2" else name
    sizes = {"hidden_size": 32, "intermediate_size": 48, **FAMILIES.get(name, {}), **changes}
    # Weights ten times as large as those of the library make attention matter.
    model = AutoModelForCausalLM.from_config(tiny.config(family, initializer_range=0.2, **sizes)).double().train()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _double_norm(module, gain=1.0 if family == "gemma" else 0.0)
    return model


def _double_norm(module: Any, gain: float) -> Callable[[Tensor], Tensor]:
    epsilon = getattr(module, "variance_epsilon", None) or module.eps

    def forward(hidden: Tensor) -> Tensor:
        return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + epsilon) * (gain + module.weight)

    return forward


@st.composite
def sharing_rows(draw: st.DrawFn, most: int = 7) -> list[Row]:
    """Rows that leave others at random places; some are the beginning of another, some are equal, some stand alone."""
    random = np.random.default_rng(draw(st.integers(0, 2**20)))
    streams = [random.integers(0, VOCAB, draw(st.integers(2, 20)))]
    for _ in range(draw(st.integers(0, most - 1))):
        parent = streams[draw(st.integers(0, len(streams) - 1))]
        kept = draw(st.integers(0, parent.size))
        # Of three ids only, so that tails agree by chance too.
        tail = random.integers(0, 3, draw(st.integers(0 if kept >= 2 else 2 - kept, 10)))
        streams.append(np.concatenate([parent[:kept], tail]))
    return [_row(draw, random, number, stream) for number, stream in enumerate(streams)]


def _row(draw: st.DrawFn, random: np.random.Generator, number: int, stream: Any) -> Row:
    trained = draw(st.lists(st.integers(1, stream.size - 1), min_size=1, max_size=stream.size - 1, unique=True))
    made = row(
        stream.tolist(),
        trained,
        advantage=draw(st.sampled_from([-1.5, -0.3, 0.7, 2.0])),
        rollout_id=f"r{number % 3}",
        group_id=f"g{number % 2}",
        weight=draw(st.sampled_from([1.0, 0.5])),
    )
    logprobs = np.where(made.loss_mask, random.normal(-5.6, 0.3, stream.size), 0).astype(np.float32)
    return msgspec.structs.replace(made, logprobs=logprobs)


class StepGradient(msgspec.Struct, frozen=True, kw_only=True):
    values: Tensor
    """Of all parameters, and the loss last."""
    totals: StepTotals
    batches: int


def step_gradient(model: nn.Module, rows: list[Row], chosen: Objective, packing: Packing) -> StepGradient:
    """The gradient of one step, by the code that trains."""
    model.zero_grad()
    batches = packing.pack(share_step(rows, "token"))
    totals = add_gradient(
        model,
        batches,
        scorer=scorer_for(model, 1.0),
        objective=chosen,
        backward=lambda loss: loss.backward(),
        around=lambda _index: nullcontext(),
    )
    parts = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return StepGradient(values=torch.cat([*parts, totals.loss.reshape(1)]), totals=totals, batches=len(batches))
