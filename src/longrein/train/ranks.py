"""The processes that train one model together.

Gradients and shards travel through DDP or FSDP2. What is ours is small and on the CPU: the rows of a step, a few sums,
and what went wrong. It goes through a gloo group of its own, whatever the devices are.
"""

# torch is partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import atexit
import gc
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from longrein.errors import LongreinError, RankError

Value = TypeVar("Value")
LEAVE_S = 0.3
"""An exiting rank waits so long for threads of torch's."""
GIVE_UP_S = 7 * 24 * 3600.0
"""Ranks wait for rollouts as long as these take. One that dies is noticed by its connection."""


class Ranks(Protocol):
    """Every method is called by all of them, in the same order."""

    @property
    def index(self) -> int:
        """This one, from 0. Rank 0 has the rollout worker, the engine and the run directory."""
        ...

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    def from_first(self, value: Value) -> Value:
        """What rank 0 gave; the others' values are not looked at."""
        ...

    def gathered(self, value: Value) -> list[Value]:
        """What each gave, by rank."""
        ...

    def summed(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, on the tensor's device."""
        ...


class OneRank:
    """A process that trains alone."""

    index = 0
    count = 1

    def from_first(self, value: Value) -> Value:
        """See :class:`Ranks`."""
        return value

    def gathered(self, value: Value) -> list[Value]:
        """See :class:`Ranks`."""
        return [value]

    def summed(self, tensor: Tensor) -> Tensor:
        """See :class:`Ranks`."""
        return tensor


class ProcessRanks:
    """The ranks of ``torch.distributed``'s default group.

    Args:
        timeout_s: how long one waits for the others at one place.

    Raises:
        RankError: by every method, where another rank is gone or does not come.
    """

    def __init__(self, timeout_s: float) -> None:
        self.index = dist.get_rank()
        self.count = dist.get_world_size()
        with lost_rank():
            self._group = cast(Any, dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s)))
        # Once a process, however many trainers it makes.
        atexit.unregister(_leave)
        atexit.register(_leave)

    def from_first(self, value: Value) -> Value:
        """See :class:`Ranks`."""
        box = [value]
        with lost_rank():
            dist.broadcast_object_list(box, src=0, group=self._group, device=torch.device("cpu"))
        return box[0]

    def gathered(self, value: Value) -> list[Value]:
        """See :class:`Ranks`."""
        values: list[Any] = [None] * self.count
        with lost_rank():
            dist.all_gather_object(values, value, group=self._group)
        return values

    def summed(self, tensor: Tensor) -> Tensor:
        """See :class:`Ranks`."""
        total = tensor.detach().to("cpu", copy=True)
        with lost_rank():
            dist.all_reduce(total, group=self._group)
        return total.to(tensor.device)


def _leave() -> None:
    """Without it, threads of torch's that are still connected abort a process that exits (now and then, under load)."""
    failed = hasattr(sys, "last_type")
    # After a failure a rank of GPUs could wait here for ever.
    if dist.is_initialized() and (dist.get_backend() == "gloo" or not failed):
        dist.destroy_process_group()
    # Threads of torch's that let go of Python objects now would be ended in the middle of C++ by the interpreter's end.
    gc.collect()
    time.sleep(LEAVE_S)


def ranks_here(timeout_s: float = GIVE_UP_S) -> Ranks:
    """Those that ``torchrun`` or ``accelerate launch`` started, once ``torch.distributed`` knows of them."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return ProcessRanks(timeout_s)
    return OneRank()


@contextmanager
def lost_rank() -> Generator[None, None, None]:
    """Say in our words that a rank did not come where all must be.

    Raises:
        RankError: the collective inside failed.
    """
    try:
        yield
    except LongreinError:
        raise
    except dist.DistError as error:
        raise RankError(_told(error)) from error
    except RuntimeError as error:
        # gloo says that a connection broke by a plain RuntimeError.
        if "gloo" not in str(error).lower():
            raise
        raise RankError(_told(error)) from error


@contextmanager
def together(ranks: Ranks) -> Generator[None, None, None]:
    """What every rank does here; all stop where one cannot.

    Raises:
        RankError: another rank raised an error of ours, with its words.
    """
    try:
        yield
    except RankError:
        raise
    except LongreinError as error:
        ranks.gathered(str(error))
        raise
    for index, reason in enumerate(ranks.gathered("")):
        if reason:
            raise RankError(f"rank {index} stopped: {reason}")


def _told(error: Exception) -> str:
    reason = str(error).splitlines()[0]
    return f"another rank is gone or did not come in time ({reason}); its own output says why"
