"""The procedural suite: seeded tasks of named families, whose test tasks hold secrets that no train task holds."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator, Sequence

import msgspec

from longrein.errors import TaskError
from longrein.tasks.base import Split
from longrein.tasks.families.base import Draft, Family
from longrein.tasks.families.registry import families_named
from longrein.types import Task

_TEST_SHARE = 4
"""One secret in this many belongs to the test split."""
_MISSES_TO_GIVE_UP = 5000
"""Draws without a new secret after which a split is taken for exhausted."""


class ProceduralSuite(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks made from a seed, the families taking turns, each from level to level.

    Satisfies :class:`~longrein.tasks.base.TaskSource`. Whether a secret belongs to train or test depends on nothing but
    itself, so the splits are disjoint for any pair of seeds, and a policy that remembers what it trained on gains
    nothing on the test tasks. With ``held_out`` they share no family either.
    """

    families: tuple[str, ...] = ()
    """Names of families or of suites of them; empty means all."""
    held_out: tuple[str, ...] = ()
    """Families or suites that make up the test split, and are not in the train split; empty: all are in both."""
    levels: tuple[int, ...] = ()
    """Difficulties; empty means all. Families that have none of them are left out."""
    agent_timeout_s: float = 120.0
    verifier_timeout_s: float = 60.0

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """``count`` tasks. A longer list begins with the shorter one; a task repeats only when its family ran dry.

        Raises:
            TaskError: an unknown family, or no family is left for the split.
        """
        families = self._families(split)
        streams = [_by_levels(family, split, seed, self._levels(family)) for family in families]
        turns = zip(range(count), itertools.cycle(zip(families, streams, strict=True)), strict=False)
        return [
            self._task(f"{family.name}-{split}-{seed}-{number:05d}", family, next(stream))
            for number, (family, stream) in turns
        ]

    def check(self) -> None:
        """Raise :class:`~longrein.errors.TaskError` for unknown families, or a split without any."""
        self._families("train")
        self._families("test")

    def _families(self, split: Split) -> tuple[Family, ...]:
        named, held_out = families_named(self.families), families_named(self.held_out) if self.held_out else ()
        chosen = held_out if split == "test" and held_out else tuple(f for f in named if f not in held_out)
        found = tuple(family for family in chosen if self._levels(family))
        if not found:
            levels = f" at difficulty {list(self.levels)}" if self.levels else ""
            raise TaskError(
                f"no task family is left for the {split} split{levels}; name more families, or hold out fewer"
            )
        return found

    def _levels(self, family: Family) -> tuple[int, ...]:
        return tuple(level for level in family.levels if not self.levels or level in self.levels)

    def _task(self, task_id: str, family: Family, drawn: _Drawn) -> Task:
        draft = drawn.draft
        return Task(
            task_id=task_id,
            prompt=draft.prompt,
            files={path: _bytes(content) for path, content in draft.files.items()},
            tests={**draft.tests},
            oracle=draft.oracle,
            agent_timeout_s=self.agent_timeout_s,
            verifier_timeout_s=self.verifier_timeout_s,
            metadata={"family": family.name, "difficulty": drawn.level},
        )


class _Drawn(msgspec.Struct, frozen=True, kw_only=True):
    level: int
    draft: Draft


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def split_of(family: str, secret: str) -> Split:
    """The split that a secret belongs to, for ever."""
    return "test" if zlib.crc32(f"{family}:{secret}".encode()) % _TEST_SHARE == 0 else "train"


def drafts(family: Family, split: Split, seed: int, level: int) -> Iterator[Draft]:
    """Endless drafts of a split at one level; secrets are all different until none is left."""
    # Level 1 keeps the name it had before there were levels, so that a seed gives what it gave.
    name = f"{family.name}:{split}:{seed}" + (f":{level}" if level > 1 else "")
    rng = random.Random(name)
    while True:
        yield from _each_secret_once(family, split, level, rng)


def _by_levels(family: Family, split: Split, seed: int, levels: Sequence[int]) -> Iterator[_Drawn]:
    streams = [(level, drafts(family, split, seed, level)) for level in levels]
    for level, stream in itertools.cycle(streams):
        yield _Drawn(level=level, draft=next(stream))


def _each_secret_once(family: Family, split: Split, level: int, rng: random.Random) -> Iterator[Draft]:
    used: set[str] = set()
    misses = 0
    while misses < _MISSES_TO_GIVE_UP:
        draft = family.draw(rng, level)
        if draft.secret in used or split_of(family.name, draft.secret) != split:
            misses += 1
            continue
        misses = 0
        used.add(draft.secret)
        yield draft
    if not used:
        raise TaskError(f"family {family.name!r} has no secret for the {split} split. Let it draw from more of them.")
