"""Siblings end with the first that fails, and callers see the error itself."""

from __future__ import annotations

import asyncio

import pytest

from longrein.errors import TaskError
from longrein.rollout.together import together


async def test_results_come_in_order() -> None:
    async def late(number: int) -> int:
        await asyncio.sleep(0.02 / (number + 1))
        return number

    assert await together(late(number) for number in range(3)) == [0, 1, 2]


async def test_the_first_error_is_raised_itself_and_nothing_goes_on() -> None:
    ended: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0.01)
        raise TaskError("no oracle")

    async def goes_on() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("cancelled")

    with pytest.raises(TaskError, match="no oracle"):
        await together([goes_on(), fails(), fails()])
    assert ended == ["cancelled"]


async def test_cancelling_the_caller_cancels_all() -> None:
    ended: list[int] = []

    async def goes_on(number: int) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(number)

    caller = asyncio.create_task(together(goes_on(number) for number in range(2)))
    await asyncio.sleep(0.01)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert sorted(ended) == [0, 1]
