"""How the rows of a step become micro-batches: each row by itself, or every shared beginning once."""

# torch is partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

import msgspec
import numpy as np
import torch

from longrein.train.batch import (
    FedRows,
    MicroBatch,
    RolloutSequence,
    SharedRow,
    input_count,
    micro_batch_of,
    micro_batches,
    rollout_sequences,
)
from longrein.train.layouts import TreeRows
from longrein.train.prefix_tree import prefix_order, prefix_tree
from longrein.train.tree_cut import cut_rows, tree_cost

logger = logging.getLogger(__name__)

WORTHWHILE = 1.03
"""A token of a tree costs a few percent more than one of plain rows, which run in fewer and larger kernel calls."""


class Packing(Protocol):
    """Lays rows out."""

    def pack(self, shared: Sequence[SharedRow]) -> tuple[MicroBatch, ...]:
        """Rows of one step -> its micro-batches; every trained token is in exactly one of them."""
        ...

    def within(self, micro_batch_tokens: int) -> Packing:
        """The same under another budget."""
        ...


class PlainPacking:
    """Each row by itself.

    Args:
        micro_batch_tokens: most tokens of a micro-batch, padding included; a longer row is fed alone.
    """

    def __init__(self, micro_batch_tokens: int) -> None:
        self._micro_batch_tokens = micro_batch_tokens

    def pack(self, shared: Sequence[SharedRow]) -> tuple[MicroBatch, ...]:
        """See :class:`Packing`."""
        return micro_batches(shared, self._micro_batch_tokens)

    def within(self, micro_batch_tokens: int) -> Packing:
        """See :class:`Packing`."""
        return PlainPacking(micro_batch_tokens)


class TreePacking:
    """Rows as prefix trees: a token that several rows share is fed once, and no padding is.

    A tree over the budget is cut, and its parts feed their common ancestors once each. A step in which rows share next
    to nothing and are of one length is packed plainly.

    Args:
        micro_batch_tokens: most unique tokens of a micro-batch; a longer row is fed alone.
        hidden_size: the model's, by which linear and attention work are weighed.
        longest_path: a step with a longer row is packed plainly, since a sliding window would bind.
    """

    def __init__(self, micro_batch_tokens: int, hidden_size: int, longest_path: float = math.inf) -> None:
        self._hidden_size = hidden_size
        self._cost = tree_cost(hidden_size, micro_batch_tokens)
        self._longest_path = longest_path
        self._plain = PlainPacking(micro_batch_tokens)

    def pack(self, shared: Sequence[SharedRow]) -> tuple[MicroBatch, ...]:
        """See :class:`Packing`."""
        longest = max((input_count(item.row) for item in shared), default=0)
        if longest > self._longest_path:
            logger.info(
                "a row of %d tokens is beyond the model's sliding window of %s: this step is packed plainly",
                longest,
                self._longest_path,
            )
            return self._plain.pack(shared)
        inputs = [item.row.token_ids[: input_count(item.row)] for item in shared]
        found = prefix_order(inputs)
        pieces = cut_rows([inputs[index].size for index in found.order], found.shared, self._cost)
        sequences = rollout_sequences(shared)
        ordered = [shared[index] for index in found.order]
        trees = tuple(_tree([ordered[place] for place in piece], sequences) for piece in pieces)
        return self._plainly_if_cheaper(shared, trees)

    def within(self, micro_batch_tokens: int) -> Packing:
        """See :class:`Packing`."""
        return TreePacking(micro_batch_tokens, self._hidden_size, self._longest_path)

    def _plainly_if_cheaper(self, shared: Sequence[SharedRow], trees: tuple[MicroBatch, ...]) -> tuple[MicroBatch, ...]:
        enough = WORTHWHILE * _fed(trees)
        if sum(batch.row_tokens for batch in trees) > enough:
            return trees
        plain = self._plain.pack(shared)
        return plain if _fed(plain) <= enough else trees


def _fed(batches: Sequence[MicroBatch]) -> int:
    return sum(batch.input_ids.numel() for batch in batches)


class RouterPacking:
    """A packing that knows what each fed token weighs in the router loss: every unique token of the step once.

    Args:
        inner: lays rows out.
    """

    def __init__(self, inner: Packing) -> None:
        self._inner = inner

    def pack(self, shared: Sequence[SharedRow]) -> tuple[MicroBatch, ...]:
        """See :class:`Packing`."""
        batches = self._inner.pack(shared)
        tree = prefix_tree([item.row.token_ids[: item.places.size] for batch in batches for item in batch.placed])
        paths = iter(tree.paths)
        waiting = np.ones(tree.token_ids.size, np.bool_)
        counted: list[MicroBatch] = []
        for batch in batches:
            shares = torch.zeros(batch.input_ids.numel(), dtype=torch.float64)
            for item, path in zip(batch.placed, islice(paths, len(batch.placed)), strict=True):
                shares[torch.from_numpy(item.places[waiting[path]])] = 1.0 / waiting.size
                waiting[path] = False
            share = float(shares.sum())
            counted.append(msgspec.structs.replace(batch, router_shares=shares, router_share=share))
        return tuple(counted)

    def within(self, micro_batch_tokens: int) -> Packing:
        """See :class:`Packing`."""
        return RouterPacking(self._inner.within(micro_batch_tokens))


def _tree(items: Sequence[SharedRow], sequences: dict[str, RolloutSequence]) -> MicroBatch:
    tree = prefix_tree([item.row.token_ids[: input_count(item.row)] for item in items])
    layout = TreeRows(depths=torch.from_numpy(tree.depths), subtree_ends=torch.from_numpy(tree.subtree_ends))
    return micro_batch_of(items, sequences, FedRows(input_ids=tree.token_ids[None], places=tree.paths, layout=layout))
