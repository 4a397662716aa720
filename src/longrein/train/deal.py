"""Which rank computes which micro-batches, so that all have about the same to do."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from longrein.train.batch import MicroBatch, SharedRow, input_count
from longrein.train.packing import Packing
from longrein.train.tree_cut import TreeCost

EVEN = 1.05
"""The busiest rank may have this many times the mean before a finer cut is looked for."""
FINER_WAYS = 12
"""Budgets tried beside the given one."""


class Dealt(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part of a step."""

    batches: tuple[MicroBatch, ...]
    cost: int
    """In the unit of :class:`~longrein.train.tree_cut.TreeCost`."""


class Dealer:
    """Packs a step and deals it out.

    A step that fits in fewer micro-batches than there are ranks, or in few that are uneven, is cut finer, though its
    parts then feed some common beginnings again: of the ways tried, the one is taken whose busiest rank has the least
    to do. Every rank deals the same rows in the same way, so nobody needs to be told.

    Args:
        packing: how rows become micro-batches.
        cost: what a token costs, and the budget.
        ranks: how many there are.
    """

    def __init__(self, packing: Packing, cost: TreeCost, ranks: int) -> None:
        self._packing = packing
        self._cost = cost
        self._ranks = ranks

    def deal(self, shared: Sequence[SharedRow]) -> tuple[Dealt, ...]:
        """Rows of one step -> the part of each rank; every trained token is in exactly one of them."""
        batches = self._packing.pack(shared)
        best = self._dealt(batches)
        if _busiest(best) * self._ranks <= EVEN * sum(part.cost for part in best):
            return best
        low = max(input_count(item.row) for item in shared)
        high = min(self._cost.token_budget, sum(batch.input_ids.numel() for batch in batches))
        # The smallest budget that gives no more micro-batches than ranks cuts the most evenly.
        for _ in range(FINER_WAYS):
            if low >= high:
                break
            middle = (low + high) // 2
            batches = self._packing.within(middle).pack(shared)
            best = min(best, self._dealt(batches), key=_busiest)
            low, high = (middle + 1, high) if len(batches) > self._ranks else (low, middle)
        return best

    def _dealt(self, batches: Sequence[MicroBatch]) -> tuple[Dealt, ...]:
        """The dearest first, each to the rank that has the least so far."""
        hands: list[list[MicroBatch]] = [[] for _ in range(self._ranks)]
        costs = [0] * self._ranks
        priced = [(cost_of(batch, self._cost), number) for number, batch in enumerate(batches)]
        for cost, number in sorted(priced, key=lambda item: -item[0]):
            poorest = costs.index(min(costs))
            hands[poorest].append(batches[number])
            costs[poorest] += cost
        return tuple(Dealt(batches=tuple(hand), cost=cost) for hand, cost in zip(hands, costs, strict=True))


def _busiest(parts: Sequence[Dealt]) -> int:
    return max(part.cost for part in parts)


def cost_of(batch: MicroBatch, cost: TreeCost) -> int:
    """Linear work and attention of one micro-batch."""
    return batch.input_ids.numel() * cost.pairs_a_token + batch.layout.attention_pairs(batch.input_ids)
