"""Rows of one step -> micro-batches under a token budget, with one denominator for the whole step.

The order is always: check the rows, give each its share of the step, leave out what teaches nothing, cut. Since the
shares are fixed before anything is cut, the gradient cannot depend on the cutting (invariant 3).
"""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longrein.train.asked import Asked
from longrein.train.layouts import Layout, PaddedRows
from longrein.train.loss_choices import Aggregation
from longrein.train.row_checks import non_finite_problem
from longrein.types import Row

NO_SHARES = torch.zeros(0, dtype=torch.float64)


class FreshRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of rollouts within the staleness bound, and how many were not of such."""

    rows: tuple[Row, ...]
    stale_rows: int


class FiniteRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of rollouts whose numbers are finite, and how many were not of such."""

    rows: tuple[Row, ...]
    non_finite_rows: int


class SharedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row that knows what each of its trained tokens weighs in the step's loss."""

    row: Row
    share: float


class PlacedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row, and where the model is fed its inputs."""

    row: Row
    places: NDArray[np.int64]
    """``[n]``: positions in the flattened ``[b * t]``."""


class MicroBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One forward and backward pass over ``b`` lines of ``t`` tokens, with ``n`` trained tokens to score."""

    layout: Layout
    """How rows lie in ``input_ids``."""
    row_tokens: int
    """Inputs of its rows, those that rows share counted for each."""
    input_ids: Tensor
    """``[b, t]`` int64. Padding repeats the row's last token."""
    asked: Asked
    """The trained tokens, in the order of the positions whose output predicts them.

    Rows that fork have the last common position in common: it then predicts a token of each of them.
    """
    sampler_logprobs: Tensor
    """``[n]`` float32."""
    advantages: Tensor
    """``[n]`` float64."""
    shares: Tensor
    """``[n]`` float64."""
    sequences: Tensor
    """``[n]`` int64: the token's rollout, numbered within the step. A rollout's trained tokens are one sequence."""
    sequence_sizes: Tensor
    """``[n]`` float64: trained tokens of that rollout in the whole step."""
    is_split: Tensor
    """``[n]`` bool: other micro-batches hold tokens of that rollout too."""
    versions: Tensor
    """``[n]`` int64: the oldest policy version that sampled anything trained in the token's row."""
    placed: tuple[PlacedRow, ...] = ()
    """Its rows."""
    router_shares: Tensor = NO_SHARES
    """``[b * t]`` float64: what each fed token weighs in the step's router loss; ``[0]`` where there is none."""
    router_share: float = 0.0
    """Their sum."""

    @property
    def predictors(self) -> Tensor:
        """``[n]`` int64: the position of each trained token's predictor, ascending."""
        return self.asked.positions[self.asked.sources]

    @property
    def targets(self) -> Tensor:
        """``[n]`` int64: ids of the trained tokens."""
        return self.asked.targets

    def to(self, device: torch.device, dtype: torch.dtype) -> MicroBatch:
        """The same on a device, with the real-valued parts in ``dtype``."""
        return MicroBatch(
            layout=self.layout.to(device),
            row_tokens=self.row_tokens,
            input_ids=self.input_ids.to(device),
            asked=self.asked.to(device),
            sampler_logprobs=self.sampler_logprobs.to(dtype).to(device),
            advantages=self.advantages.to(dtype).to(device),
            shares=self.shares.to(dtype).to(device),
            sequences=self.sequences.to(device),
            sequence_sizes=self.sequence_sizes.to(dtype).to(device),
            is_split=self.is_split.to(device),
            versions=self.versions.to(device),
            placed=self.placed,
            router_shares=self.router_shares.to(dtype).to(device),
            router_share=self.router_share,
        )


def fresh_rows(rows: Iterable[Row], *, policy_version: int, max_staleness: int) -> FreshRows:
    """Leave out rollouts with a token that was sampled more than ``max_staleness`` versions ago (invariant 5).

    All rows of such a rollout go, or what trains of it would depend on how it forked into rows (invariant 3).
    """
    every = tuple(rows)
    stale = {row.rollout_id for row in every if policy_version - row.min_policy_version > max_staleness}
    fresh = tuple(row for row in every if row.rollout_id not in stale)
    return FreshRows(rows=fresh, stale_rows=len(every) - len(fresh))


def finite_rows(rows: Iterable[Row]) -> FiniteRows:
    """Leave out rollouts of which a row has a sampler logprob, advantage or weight that is not finite.

    All rows of such a rollout go: the rest of it would be another sequence than the one that was sampled.
    """
    every = tuple(rows)
    bad = {row.rollout_id for row in every if non_finite_problem(row)}
    finite = tuple(row for row in every if row.rollout_id not in bad)
    return FiniteRows(rows=finite, non_finite_rows=len(every) - len(finite))


def share_step(rows: Sequence[Row], aggregation: Aggregation, constant_tokens: int = 1) -> tuple[SharedRow, ...]:
    """Give each row its share of the step: what the loss of each of its trained tokens is multiplied by.

    ``token``: a mean over all trained tokens of the step. ``rollout``: a mean over rollouts of each rollout's mean
    over its trained tokens. ``rollout_sum``: a mean over rollouts of each rollout's sum. ``group``: a mean over groups
    of each group's mean over its trained tokens. ``constant``: ``rollout_sum`` divided by ``constant_tokens``. None
    looks at rows, so none depends on how a rollout forked. Only what has rows here is counted.
    """
    denominator = _Denominators(rows, constant_tokens).of(aggregation)
    return tuple(SharedRow(row=row, share=row.weight / denominator(row)) for row in rows)


class _Denominators:
    """What divides a token, for each way of averaging."""

    def __init__(self, rows: Sequence[Row], constant_tokens: int) -> None:
        self._by_rollout: dict[str, int] = {}
        self._by_group: dict[str, int] = {}
        self._constant_tokens = constant_tokens
        for row in rows:
            tokens = int(row.loss_mask.sum())
            self._by_rollout[row.rollout_id] = self._by_rollout.get(row.rollout_id, 0) + tokens
            self._by_group[row.group_id] = self._by_group.get(row.group_id, 0) + tokens

    def of(self, aggregation: Aggregation) -> Callable[[Row], int]:
        rollouts, total = len(self._by_rollout), sum(self._by_rollout.values())
        ways: dict[Aggregation, Callable[[Row], int]] = {
            "token": lambda _row: total,
            "rollout": lambda row: rollouts * self._by_rollout[row.rollout_id],
            "rollout_sum": lambda _row: rollouts,
            "group": lambda row: len(self._by_group) * self._by_group[row.group_id],
            "constant": lambda _row: rollouts * self._constant_tokens,
        }
        return ways[aggregation]


def micro_batches(shared: Iterable[SharedRow], micro_batch_tokens: int) -> tuple[MicroBatch, ...]:
    """Cut rows into padded micro-batches of at most ``micro_batch_tokens`` tokens, padding included.

    Rows of like length come together, longest first. A row longer than the budget is a micro-batch of its own.
    """
    waiting = sorted(shared, key=lambda item: input_count(item.row), reverse=True)
    sequences = rollout_sequences(waiting)
    batches: list[MicroBatch] = []
    while waiting:
        count = max(1, micro_batch_tokens // input_count(waiting[0].row))
        batches.append(_pad(waiting[:count], sequences))
        waiting = waiting[count:]
    return tuple(batches)


class RolloutSequence(msgspec.Struct, frozen=True, kw_only=True):
    """All trained tokens of one rollout."""

    number: int
    size: int


def rollout_sequences(items: Sequence[SharedRow]) -> dict[str, RolloutSequence]:
    """The sequence of each rollout of a step, by its id."""
    sizes: dict[str, int] = {}
    for item in items:
        sizes[item.row.rollout_id] = sizes.get(item.row.rollout_id, 0) + int(item.row.loss_mask.sum())
    return {name: RolloutSequence(number=number, size=size) for number, (name, size) in enumerate(sizes.items())}


def input_count(row: Row) -> int:
    """Tokens that must be fed: all before the last trained one."""
    return int(np.flatnonzero(row.loss_mask)[-1])


def _pad(items: Sequence[SharedRow], sequences: Mapping[str, RolloutSequence]) -> MicroBatch:
    width = input_count(items[0].row)
    input_ids = np.empty((len(items), width), np.int64)
    for line, item in enumerate(items):
        size = input_count(item.row)
        input_ids[line, :size] = item.row.token_ids[:size]
        input_ids[line, size:] = item.row.token_ids[size - 1]
    places = [line * width + np.arange(input_count(item.row)) for line, item in enumerate(items)]
    return micro_batch_of(items, sequences, FedRows(input_ids=input_ids, places=places, layout=PaddedRows()))


class FedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows, laid out."""

    input_ids: NDArray[np.int64]
    """``[b, t]``."""
    places: Sequence[NDArray[np.int64]]
    """For each row: where its inputs are in the flattened ``[b * t]``."""
    layout: Layout


def micro_batch_of(items: Sequence[SharedRow], sequences: Mapping[str, RolloutSequence], fed: FedRows) -> MicroBatch:
    """Everything that is known of the trained tokens of ``items``, beside how they are fed."""
    trained = [np.flatnonzero(item.row.loss_mask) for item in items]
    sizes = [positions.size for positions in trained]
    owners = [sequences[item.row.rollout_id] for item in items]
    numbers = np.repeat([owner.number for owner in owners], sizes)
    totals = np.repeat([owner.size for owner in owners], sizes)
    predictors = np.concatenate([places[at - 1] for places, at in zip(fed.places, trained, strict=True)])
    targets = np.concatenate([item.row.token_ids[at] for item, at in zip(items, trained, strict=True)]).astype(np.int64)
    order = np.argsort(predictors, kind="stable")

    def column(values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values[order])

    return MicroBatch(
        layout=fed.layout,
        row_tokens=sum(places.size for places in fed.places),
        input_ids=torch.from_numpy(fed.input_ids),
        asked=Asked.of(predictors[order], targets[order]),
        sampler_logprobs=column(
            np.concatenate([item.row.logprobs[at] for item, at in zip(items, trained, strict=True)])
        ),
        advantages=column(np.repeat([float(item.row.advantage) for item in items], sizes)),
        shares=column(np.repeat([item.share for item in items], sizes)),
        sequences=column(numbers),
        sequence_sizes=column(totals.astype(np.float64)),
        is_split=column(np.bincount(numbers)[numbers] < totals),
        versions=column(np.repeat([item.row.min_policy_version for item in items], sizes)),
        placed=tuple(PlacedRow(row=item.row, places=at) for item, at in zip(items, fed.places, strict=True)),
    )
