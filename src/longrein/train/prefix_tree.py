"""Rows that share beginnings -> one prefix tree in which every unique token is written once. Numpy only.

Sorted rows meet each other where they share most. What a row has beyond its neighbour above is new, and all new tokens
one after another are the tree in depth-first order: a node's descendants follow it without a gap. So one number a
token says who may see it: token ``k`` is an ancestor of token ``q``, or ``q`` itself, exactly if
``k <= q < subtree_ends[k]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class PrefixOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in the order in which neighbours share most."""

    order: tuple[int, ...]
    """Places of the rows in the order in which they were given."""
    shared: tuple[int, ...]
    """Tokens that each row, in the new order, shares with the one before it; 0 for the first."""


class PrefixTree(msgspec.Struct, frozen=True, kw_only=True):
    """The unique tokens of some rows, ``t`` of them, in depth-first order."""

    token_ids: I64
    """``[t]``."""
    depths: I64
    """``[t]``: the token's place in its rows, from 0: its position id."""
    subtree_ends: I64
    """``[t]``: the first place after all descendants of the token, its own later siblings not among them."""
    paths: tuple[I64, ...]
    """For each row as given, ``[n]``: where in the tree its tokens are."""


def prefix_order(rows: Sequence[I32]) -> PrefixOrder:
    """Sort rows by their ids, so that rows with a common beginning are neighbours.

    Args:
        rows: each ``[n]``, ids not negative.
    """
    # Big-endian bytes of numbers that are not negative compare like the numbers.
    keys = [row.astype(">u4").tobytes() for row in rows]
    order = sorted(range(len(rows)), key=keys.__getitem__)
    shared = [0, *(_common(rows[above], rows[below]) for above, below in pairwise(order))]
    return PrefixOrder(order=tuple(order), shared=tuple(shared[: len(rows)]))


def prefix_tree(rows: Sequence[I32]) -> PrefixTree:
    """Write each unique token once. Two tokens are one if they and all before them are equal.

    Args:
        rows: each ``[n]``, ids not negative.
    """
    sorted_rows = prefix_order(rows)
    size = sum(rows[index].size for index in sorted_rows.order) - sum(sorted_rows.shared)
    token_ids, depths, subtree_ends = np.empty((3, size), np.int64)
    paths: list[Any] = [None] * len(rows)
    path = np.empty(0, np.int64)
    start = 0
    for index, shared in zip(sorted_rows.order, sorted_rows.shared, strict=True):
        subtree_ends[path[shared:]] = start
        stop = start + rows[index].size - shared
        token_ids[start:stop] = rows[index][shared:]
        depths[start:stop] = np.arange(shared, rows[index].size)
        path = paths[index] = np.concatenate([path[:shared], np.arange(start, stop)])
        start = stop
    subtree_ends[path] = size
    return PrefixTree(token_ids=token_ids, depths=depths, subtree_ends=subtree_ends, paths=tuple(paths))


def _common(left: I32, right: I32) -> int:
    """Length of the common beginning."""
    size = min(left.size, right.size)
    differing = np.flatnonzero(left[:size] != right[:size])
    return int(differing[0]) if differing.size else size
