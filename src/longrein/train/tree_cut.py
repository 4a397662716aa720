"""Where a forest of rows is cut into micro-batches, so that the least is computed twice and the pieces are even."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class TreeCost(msgspec.Struct, frozen=True, kw_only=True):
    """What feeding a token costs, in attention pairs: whole numbers, so that equal costs compare as equal."""

    pairs_a_token: int
    """All work that does not depend on the token's depth."""
    token_budget: int
    """Most unique tokens of a micro-batch; a row longer than it is fed alone."""

    def between(self, start: int, stop: int) -> int:
        """Cost of tokens of depths ``start`` to ``stop``, which see 1 to ``stop`` tokens each."""
        pairs = (stop * (stop + 1) - start * (start + 1)) // 2
        return (stop - start) * self.pairs_a_token + pairs


def tree_cost(hidden_size: int, token_budget: int) -> TreeCost:
    """The cost of a decoder of that width.

    A layer has about ``12 * hidden_size ** 2`` weights, two operations a weight and token; a pair takes
    ``4 * hidden_size`` operations (scores and values). So a token's linear work is that of ``6 * hidden_size`` pairs.
    """
    return TreeCost(pairs_a_token=6 * hidden_size, token_budget=token_budget)


class _Best(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Compared field by field."""

    cost: int
    pieces: int
    unevenness: int
    """Sum of the pieces' squared costs."""
    before: int = 0
    """Where the last piece begins."""


def cut_rows(sizes: Sequence[int], shared: Sequence[int], cost: TreeCost) -> tuple[range, ...]:
    """Cut sorted rows into pieces of neighbours.

    A cut inside a tree makes the later piece feed the ancestors again, so the cheapest cuts are between trees. Of all
    ways within the budget the one of least cost is taken, of those the one of fewest pieces, of those the most even.
    Nothing is ever dropped.

    Args:
        sizes: tokens of each row.
        shared: tokens that each row shares with the one before it.
        cost: what a token costs, and the budget.
    """
    best = [_Best(cost=0, pieces=0, unevenness=0)]
    for stop in range(1, len(sizes) + 1):
        best.append(min(_last_pieces(sizes, shared, cost, best, stop)))
    pieces: list[range] = []
    stop = len(sizes)
    while stop:
        pieces.append(range(best[stop].before, stop))
        stop = best[stop].before
    return tuple(reversed(pieces))


def _last_pieces(
    sizes: Sequence[int], shared: Sequence[int], cost: TreeCost, best: Sequence[_Best], stop: int
) -> list[_Best]:
    """Every way to end at ``stop``: the last piece may begin anywhere as long as the budget holds."""
    ways: list[_Best] = []
    new_tokens = new_cost = 0
    for start in range(stop - 1, -1, -1):
        if ways and new_tokens + sizes[start] > cost.token_budget:
            break
        piece = new_cost + cost.between(0, sizes[start])
        before = best[start]
        ways.append(
            _Best(
                cost=before.cost + piece,
                pieces=before.pieces + 1,
                unevenness=before.unevenness + piece**2,
                before=start,
            )
        )
        new_tokens += sizes[start] - shared[start]
        new_cost += cost.between(shared[start], sizes[start])
    return ways
