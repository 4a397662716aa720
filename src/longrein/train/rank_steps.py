"""Every rank trains the steps that rank 0 makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar, cast

import msgspec

from longrein.errors import LongreinError, RankError
from longrein.train.ranks import Ranks

Step = TypeVar("Step")


class _Sent(msgspec.Struct, Generic[Step], frozen=True, kw_only=True):
    step: Step


class _End(msgspec.Struct, frozen=True, kw_only=True):
    """There are no more steps in this epoch."""


class _Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """Rank 0 cannot make another."""

    reason: str


class RankSteps(Generic[Step]):
    """Steps for one rank. Only rank 0 makes them; an epoch is one iteration.

    Args:
        make: begins an epoch of steps; called on rank 0 alone.
        ranks: who trains them.

    Raises:
        RankError: on the others, when rank 0 raised an error of ours, with its words.
    """

    def __init__(self, make: Callable[[], Iterable[Step]], ranks: Ranks) -> None:
        self._make = make
        self._ranks = ranks

    def __iter__(self) -> Iterator[Step]:
        return self._made() if self._ranks.index == 0 else self._received()

    def _made(self) -> Iterator[Step]:
        try:
            for step in self._make():
                self._ranks.from_first(_Sent(step=step))
                yield step
        except LongreinError as error:
            if not isinstance(error, RankError):
                self._ranks.from_first(_Stopped(reason=str(error)))
            raise
        self._ranks.from_first(_End())

    def _received(self) -> Iterator[Step]:
        while True:
            message = self._ranks.from_first(cast(object, _End()))
            if isinstance(message, _End):
                return
            if isinstance(message, _Stopped):
                raise RankError(f"rank 0 stopped: {message.reason}")
            if not isinstance(message, _Sent):
                raise RankError(f"rank 0 is elsewhere: it sent {type(message).__name__} where a step was due")
            yield cast("_Sent[Step]", message).step
