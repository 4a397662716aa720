"""Ways to compute one step's gradient: ours as a tree, ours plainly, the floor, and TRL's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
import numpy as np
import torch

from longrein.train.batch import MicroBatch, SharedRow, micro_batches
from longrein.train.choose import policy_objective
from longrein.train.gradient import add_gradient
from longrein.train.grpo_config import AsyncGRPOConfig
from longrein.train.layouts import TreeRows
from longrein.train.loss_choices import LossChoices
from longrein.train.packing import Packing, PlainPacking, TreePacking
from longrein.train.reference import NoPenalty
from longrein.train.score import scorer_for
from step_bench.cases import row_of
from step_bench.trl import TrlStep

OURS = ("tree", "plain", "floor")
TRLS = ("trl trie", "trl untied")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What all ways have in common."""

    budget: int
    """``micro_batch_tokens``."""
    trl: Path | None
    """Site-packages with the peer; ``None``: measured without it."""

    @property
    def ways(self) -> tuple[str, ...]:
        return OURS if self.trl is None else (*OURS, *TRLS)


class Way(Protocol):
    """Computes the gradient of a step."""

    def step(self, rows: Sequence[SharedRow]) -> dict[str, float]:
        """One forward and backward over ``rows``, from rows to gradient: ``wall_s``, ``cpu_s``, ``fed_tokens``."""
        ...

    def gradient(self) -> torch.Tensor:
        """All of it, flat."""
        ...


def way_of(name: str, model: Any, setting: Setting) -> Way:
    if name in TRLS:
        return TrlStep(cast(Path, setting.trl), model, setting.budget, shared=name == "trl trie")
    if name == "plain":
        return OurStep(model, PlainPacking(setting.budget))
    tree = TreePacking(setting.budget, model.config.hidden_size)
    return OurStep(model, tree) if name == "tree" else FloorStep(model, tree)


class OurStep:
    """The trainer's own step, with one way to lay rows out."""

    def __init__(self, model: Any, packing: Packing) -> None:
        self._model = model.train()
        self._scorer = scorer_for(model, 1.0)
        choices = {name: getattr(AsyncGRPOConfig, name) for name in LossChoices.__struct_fields__}
        self._objective = policy_objective(LossChoices(**choices), NoPenalty())
        self._packing = packing

    def step(self, rows: Sequence[SharedRow]) -> dict[str, float]:
        """See :class:`Way`."""
        return self._timed(lambda: self._packing.pack(rows))

    def gradient(self) -> torch.Tensor:
        """See :class:`Way`."""
        return torch.cat([parameter.grad.flatten() for parameter in self._model.parameters()])

    def _timed(self, plan: Callable[[], Sequence[MicroBatch]]) -> dict[str, float]:
        self._model.zero_grad()
        wall, cpu = time.perf_counter(), time.process_time()
        totals = add_gradient(
            self._model,
            plan(),
            scorer=self._scorer,
            objective=self._objective,
            backward=lambda loss: loss.backward(),
            around=lambda _index: nullcontext(),
        )
        return {
            "wall_s": time.perf_counter() - wall,
            "cpu_s": time.process_time() - cpu,
            "fed_tokens": totals.fed_tokens,
        }


class FloorStep(OurStep):
    """As much work as the tree's by the plain code; how to lay it out is not in its time."""

    def step(self, rows: Sequence[SharedRow]) -> dict[str, float]:
        """See :class:`Way`."""
        batches = floor_batches(self._packing.pack(rows))
        return self._timed(lambda: batches)


def floor_batches(batches: Sequence[MicroBatch]) -> list[MicroBatch]:
    """Plain rows that share nothing, unpadded, of as many tokens, attention pairs and predictors as the trees have."""
    made: list[MicroBatch] = []
    for batch in batches:
        if not isinstance(batch.layout, TreeRows):
            made.append(batch)
            continue
        ids = batch.input_ids[0].numpy()
        scored = batch.predictors.unique().numel() / ids.size
        # A row of n tokens has n * (n + 1) / 2 pairs.
        sizes = _sizes(ids.size, 2 * batch.layout.attention_pairs(batch.input_ids) - ids.size)
        rows = [_floor_row(part, scored) for part in np.split(ids, np.cumsum(sizes)[:-1])]
        # The last one is shorter: beside the others it would be padded.
        for alike in (rows[:-1], rows[-1:]):
            made += micro_batches(alike, ids.size) if alike else ()
    return made


def _sizes(tokens: int, squares: int) -> list[int]:
    """Equal sizes and a smaller one, with given sums of themselves and of their squares."""
    equal = math.ceil(tokens**2 / squares) - 1
    if equal == 0:
        return [tokens]
    root = math.sqrt(max(0, equal * ((equal + 1) * squares - tokens**2)))
    size = math.floor((tokens * equal + root) / (equal * (equal + 1)))
    return [*[size] * equal, tokens - size * equal]


def _floor_row(part: Any, scored: float) -> SharedRow:
    ids = np.append(part, 0).astype(np.int32)
    mask = np.zeros(ids.size, np.bool_)
    mask[-max(1, round(scored * part.size)) :] = True
    return SharedRow(row=row_of("floor", ids, mask, np.random.default_rng(0)), share=1.0)
