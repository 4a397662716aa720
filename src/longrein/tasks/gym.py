"""``reasoning-gym``: puzzles made from a seed; :mod:`longrein.tasks.puzzle_verifier` judges them."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec

from longrein.errors import TaskError
from longrein.tasks.base import Split
from longrein.types import Task

ANSWER = "answer.txt"
ENTRY = "reasoning_gym_entry"
"""Key of the metadata that holds what the puzzle's score function wants, as JSON."""
PACKAGE = "reasoning_gym"
_SPLIT_SEEDS: Mapping[Split, int] = {"train": 0, "test": 1 << 31}
"""A puzzle's own seed is that of its data set plus its index; some data sets take no seed of more than 32 bits."""
_RUN_STRIDE = 1 << 20
MOST_PUZZLES = 1 << 24
"""Of one data set, so that a split ends before the next begins."""


class _Puzzles(Protocol):
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...


class _Gym(Protocol):
    def create_dataset(self, name: str, *, size: int, seed: int) -> _Puzzles: ...


class ReasoningGym(msgspec.Struct, frozen=True, kw_only=True):
    """Puzzles of the named data sets, which take turns. Satisfies :class:`~longrein.tasks.base.TaskSource`.

    Train and test puzzles come from seeds that differ for any pair of run seeds.
    """

    names: tuple[str, ...]

    def check(self) -> None:
        """Raise :class:`~longrein.errors.TaskError` without the package, or for names that it does not know."""
        if not self.names:
            raise TaskError("a reasoning_gym task source needs names. Set tasks.families, as in ['leg_counting'].")
        _gym()
        known = importlib.import_module("reasoning_gym.factory").DATASETS
        unknown = [name for name in self.names if name not in known]
        if unknown:
            raise TaskError(
                f"reasoning_gym has no data set named {', '.join(map(repr, unknown))}; "
                f"it has {', '.join(sorted(known))}"
            )

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """``count`` puzzles, the same for the same seed. Raises ``TaskError`` as :meth:`check` does."""
        self.check()
        own_seed = first_seed(split, seed)
        each = -(-count // len(self.names))
        if each > MOST_PUZZLES:
            raise TaskError(f"{each} puzzles of each data set are more than the {MOST_PUZZLES} of a split; take fewer")
        puzzles = {name: _gym().create_dataset(name, size=max(each, 1), seed=own_seed) for name in self.names}
        return [
            _task(name, f"{name}-{split}-{seed}-{number:05d}", puzzles[name][number])
            for number in range(each)
            for name in self.names
        ][:count]


def first_seed(split: Split, seed: int) -> int:
    """The seed of a split's first puzzle in the run of ``seed``. Splits never meet, whatever the seeds of runs."""
    return _SPLIT_SEEDS[split] + seed * _RUN_STRIDE % ((1 << 31) - MOST_PUZZLES)


def _task(name: str, task_id: str, entry: Mapping[str, Any]) -> Task:
    return Task(
        task_id=task_id,
        prompt=f"{str(entry['question']).strip()}\nWrite the answer, and nothing else, to {ANSWER}.",
        oracle=(f"cat > {ANSWER} <<'END_OF_FILE'\n{entry['answer']}\nEND_OF_FILE",)
        if entry["answer"] is not None
        else (),
        metadata={"family": name, ENTRY: json.dumps(entry, default=str)},
    )


def _gym() -> _Gym:
    try:
        return cast("_Gym", importlib.import_module("reasoning_gym"))
    except ImportError as error:
        raise TaskError("reasoning_gym needs the package: pip install 'longrein[reasoning-gym]'") from error
