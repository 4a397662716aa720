"""Run coroutines side by side; the first that fails ends its siblings."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in the order given. When one raises, the others are cancelled and awaited, then it is raised itself.

    Callers see the error as it is, not an ``ExceptionGroup``; when several failed at once, the first of them.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
