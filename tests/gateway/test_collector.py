"""What was loaded stays out of the collector's way while sessions run, and comes back after them."""

from __future__ import annotations

import gc

import pytest

from longrein.gateway.collector import loaded_stays


def test_loaded_objects_are_passed_over_until_the_end() -> None:
    before = gc.get_freeze_count()
    with loaded_stays():
        assert gc.get_freeze_count() > before + 1000
    assert gc.get_freeze_count() == 0


def test_also_after_an_error() -> None:
    with pytest.raises(ValueError, match="x"), loaded_stays():
        raise ValueError("x")
    assert gc.get_freeze_count() == 0
