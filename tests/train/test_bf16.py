"""Invariant 3 in bfloat16: a layout may round elsewhere than plain rows do, but not more.

In float64 layouts agree to 1e-9 (``test_batch.py``, ``test_tree_attention.py``). In bfloat16 each makes an error of its
own against float32; that of any layout is at most twice that of the plain rows. Losses here have a continuous gradient:
where a clip binds in one layout and not in another, a token's whole gradient is the difference, whatever the precision.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from longrein.train.objective import CrossEntropy, Objective
from longrein.train.packing import Packing, PlainPacking, TreePacking
from longrein.types import Row
from tests import tiny
from tests.train.exact import VOCAB, step_gradient
from tests.train.table import objective
from tests.train.toy import row

OBJECTIVES: list[Objective] = [CrossEntropy(), objective(loss="cispo")]
WHOLE = PlainPacking(10_000)
BUDGETS = st.integers(1, 250)


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "initializer_range": 0.1}
    return {
        family: AutoModelForCausalLM.from_config(tiny.config(family, **sizes)).train()
        for family in ("llama", "qwen3", "gpt_neox")
    }


@st.composite
def groups(draw: st.DrawFn) -> list[Row]:
    """Rollouts with a common prompt; enough tokens for their rounding errors to be no accident."""
    random = np.random.default_rng(draw(st.integers(0, 2**20)))
    prompt = random.integers(0, VOCAB, draw(st.integers(16, 40)))
    rows: list[Row] = []
    for number in range(draw(st.integers(2, 5))):
        ids = np.concatenate([prompt, random.integers(0, VOCAB, draw(st.integers(10, 30)))])
        trained = np.arange(ids.size) >= prompt.size
        made = row(
            ids.tolist(),
            np.flatnonzero(trained).tolist(),
            advantage=draw(st.sampled_from([-1.5, 0.7, 2.0])),
            rollout_id=f"r{number}",
            logprobs=np.where(trained, random.normal(-5.6, 0.3, ids.size), 0).astype(np.float32),
        )
        rows.append(made)
    return rows


def forked(rows: list[Row], owners: int) -> list[Row]:
    """The same tokens, each trained in one of two rows: those whose place has a 1 in ``owners``, and the others."""
    parts: list[Row] = []
    for item in rows:
        mine = np.array([owners >> place % 16 & 1 for place in range(item.token_ids.size)], np.bool_)
        for mask in (item.loss_mask & mine, item.loss_mask & ~mine):
            if mask.any():
                parts.append(msgspec.structs.replace(item, loss_mask=mask, logprobs=np.where(mask, item.logprobs, 0)))
    return parts


def error(model: Any, rows: list[Row], chosen: Objective, packing: Packing, exact: torch.Tensor) -> float:
    """Of the gradient under autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        values = step_gradient(model, rows, chosen, packing).values
    return float(torch.linalg.norm(values - exact))


@settings(deadline=None, max_examples=40)
@given(
    family=st.sampled_from(["llama", "qwen3", "gpt_neox"]),
    rows=groups(),
    chosen=st.sampled_from(OBJECTIVES),
    owners=st.integers(0, 2**16 - 1),
    packing=st.builds(PlainPacking, BUDGETS) | st.builds(TreePacking, BUDGETS, st.just(8)),
    checkpointing=st.booleans(),
)
def test_no_layout_is_further_from_float32_than_twice_the_plain_rows(
    models: dict[str, Any],
    family: str,
    rows: list[Row],
    chosen: Objective,
    owners: int,
    packing: Packing,
    checkpointing: bool,
) -> None:
    model = models[family]
    exact = step_gradient(model, rows, chosen, WHOLE).values
    own = error(model, rows, chosen, WHOLE, exact)
    if checkpointing:
        model.activation_checkpointing_enable()
    other = error(model, forked(rows, owners), chosen, packing, exact)
    if checkpointing:
        model.activation_checkpointing_disable()
    assert 0 < other <= 2 * own
