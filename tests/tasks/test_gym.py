"""Puzzles: seeds of the splits, which need no package."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longrein.tasks.gym import MOST_PUZZLES, first_seed


@given(st.integers(0, 2**64), st.integers(0, 2**64))
def test_puzzles_of_the_splits_never_meet_and_have_seeds_of_32_bits(one: int, other: int) -> None:
    """``pool_matrix`` hands its seed to numpy, which takes no longer one."""
    assert 0 <= first_seed("train", one) <= first_seed("train", one) + MOST_PUZZLES <= first_seed("test", other)
    assert first_seed("test", other) + MOST_PUZZLES <= 2**32
    assert first_seed("train", 0) != first_seed("train", 1)
