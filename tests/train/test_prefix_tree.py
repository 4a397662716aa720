"""Every unique token once, seen by its descendants only; and cuts that drop nothing and repeat little."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.train.batch import input_count, share_step
from longrein.train.layouts import PaddedRows, TreeRows
from longrein.train.packing import WORTHWHILE, PlainPacking, TreePacking
from longrein.train.prefix_tree import prefix_order, prefix_tree
from longrein.train.tree_cut import cut_rows, tree_cost
from longrein.types import Row
from tests.train.exact import sharing_rows
from tests.train.toy import row


def inputs(rows: list[Row]) -> list[np.ndarray]:
    return [item.token_ids[: input_count(item)] for item in rows]


def prefixes(streams: list[np.ndarray]) -> set[tuple[int, ...]]:
    """A token of the tree, by hand: itself and all before it."""
    return {tuple(stream[:end].tolist()) for stream in streams for end in range(1, stream.size + 1)}


@settings(deadline=None, max_examples=150)
@given(sharing_rows(most=9))
def test_each_unique_token_once_where_its_rows_have_it(rows: list[Row]) -> None:
    streams = inputs(rows)
    tree = prefix_tree(streams)
    assert tree.token_ids.size == len(prefixes(streams))
    for stream, path in zip(streams, tree.paths, strict=True):
        np.testing.assert_array_equal(tree.token_ids[path], stream)
        np.testing.assert_array_equal(tree.depths[path], np.arange(stream.size))


@settings(deadline=None, max_examples=100)
@given(sharing_rows(most=9))
def test_a_token_is_seen_by_itself_and_its_descendants(rows: list[Row]) -> None:
    streams = inputs(rows)
    tree = prefix_tree(streams)
    places = np.arange(tree.token_ids.size)
    sees = (places[None] <= places[:, None]) & (places[:, None] < tree.subtree_ends[None])
    expected = np.zeros_like(sees)
    for path in tree.paths:
        for depth, place in enumerate(path):
            expected[place, path[: depth + 1]] = True
    np.testing.assert_array_equal(sees, expected)


def test_a_small_tree_by_hand() -> None:
    tree = prefix_tree([np.array(ids, np.int32) for ids in ([5, 6, 9], [5, 6, 7], [300], [5, 6])])
    assert tree.token_ids.tolist() == [5, 6, 7, 9, 300]
    assert tree.depths.tolist() == [0, 1, 2, 2, 0]
    assert tree.subtree_ends.tolist() == [4, 4, 3, 4, 5]
    assert [path.tolist() for path in tree.paths] == [[0, 1, 3], [0, 1, 2], [4], [0, 1]]


def test_no_rows_are_an_empty_tree() -> None:
    assert prefix_tree([]).token_ids.size == 0
    assert prefix_order([]).shared == ()
    assert TreePacking(10, hidden_size=8).pack([]) == ()


@settings(deadline=None, max_examples=100)
@given(sharing_rows(most=7), st.integers(1, 60), st.sampled_from([1, 8]))
def test_cuts_are_the_best_there_are(rows: list[Row], budget: int, hidden_size: int) -> None:
    streams = inputs(rows)
    found = prefix_order(streams)
    ordered = [streams[index] for index in found.order]
    cost = tree_cost(hidden_size, budget)

    def price(pieces: list[range]) -> tuple[int, int, int]:
        costs = [
            sum(cost.between(len(prefix) - 1, len(prefix)) for prefix in prefixes([ordered[at] for at in piece]))
            for piece in pieces
        ]
        return sum(costs), len(costs), sum(value**2 for value in costs)

    def allowed(pieces: list[range]) -> bool:
        return all(len(piece) == 1 or len(prefixes([ordered[at] for at in piece])) <= budget for piece in pieces)

    ways = []
    for count in range(len(ordered)):
        for cuts in combinations(range(1, len(ordered)), count):
            ends = [0, *cuts, len(ordered)]
            ways.append([range(*pair) for pair in pairwise(ends)])
    best = cut_rows([stream.size for stream in ordered], found.shared, cost)
    assert allowed(list(best))
    assert price(list(best)) == min(price(way) for way in ways if allowed(way))


@settings(deadline=None, max_examples=100)
@given(sharing_rows(most=9), st.integers(1, 80))
def test_no_trained_token_is_dropped_and_what_is_fed_is_counted(rows: list[Row], budget: int) -> None:
    shared = share_step(rows, "token")
    batches = TreePacking(budget, hidden_size=8).pack(shared)

    def told(packed: tuple) -> list[tuple]:
        """What the loss sees of each token, and the token that predicts it."""
        return sorted(
            entry
            for batch in packed
            for entry in zip(
                batch.targets.tolist(),
                batch.input_ids.flatten()[batch.predictors].tolist(),
                batch.sampler_logprobs.tolist(),
                batch.advantages.tolist(),
                batch.shares.tolist(),
                batch.sequence_sizes.tolist(),
                strict=True,
            )
        )

    assert told(batches) == told(PlainPacking(10_000).pack(shared))
    assert sum(batch.row_tokens for batch in batches) == sum(map(input_count, rows))
    whole = TreePacking(10_000, hidden_size=8).pack(shared)
    fed, unique = sum(batch.input_ids.numel() for batch in whole), len(prefixes(inputs(rows)))
    assert fed == unique or (isinstance(whole[0].layout, PaddedRows) and fed <= WORTHWHILE * unique)


def test_rows_of_one_length_that_share_nothing_are_fed_plainly() -> None:
    """There a tree saves nothing and costs a little; where it saves padding, it is taken."""

    def layouts(*sizes: int) -> set[type]:
        rows = [row([9 * number + 3] * size, [size - 1], rollout_id=f"r{number}") for number, size in enumerate(sizes)]
        return {type(batch.layout) for batch in TreePacking(200, hidden_size=8).pack(share_step(rows, "token"))}

    assert layouts(51, 51, 51, 51, 51) == layouts(51, 50, 50, 51) == {PaddedRows}
    assert layouts(51, 40, 51, 51) == {TreeRows}


def test_two_tokens_after_one_fork_have_one_predictor() -> None:
    shared = share_step([row([5, 6, 7], [2], rollout_id="a"), row([5, 6, 8], [2], rollout_id="b")], "token")
    (batch,) = TreePacking(100, hidden_size=8).pack(shared)
    assert batch.input_ids.tolist() == [[5, 6]]
    assert batch.predictors.tolist() == [1, 1]
    assert sorted(batch.targets.tolist()) == [7, 8]


def test_a_step_beyond_the_window_is_packed_plainly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    shared = share_step([row(range(12), [11], rollout_id="a"), row(range(12), [10], rollout_id="b")], "token")
    assert sum(batch.input_ids.numel() for batch in TreePacking(99, 8, longest_path=11).pack(shared)) == 11
    assert "sliding window" not in caplog.text
    assert sum(batch.input_ids.numel() for batch in TreePacking(99, 8, longest_path=10).pack(shared)) == 22
    assert "11 tokens is beyond the model's sliding window of 10" in caplog.text
