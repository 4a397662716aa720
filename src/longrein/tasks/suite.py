"""The procedural suite: seeded tasks of named families, whose test tasks hold secrets that no train task holds."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator, Sequence

import msgspec

from longrein.errors import TaskError
from longrein.tasks.base import Split
from longrein.tasks.families.base import Draft, Family, test_script
from longrein.tasks.families.registry import families_named
from longrein.types import Task

_TEST_SHARE = 4
"""One secret in this many belongs to the test split."""
_MISSES_TO_GIVE_UP = 5000
"""Draws without a new secret after which a split is taken for exhausted."""


class ProceduralSuite(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks made from a seed, the families taking turns. Satisfies :class:`~longrein.tasks.base.TaskSource`.

    Whether a secret belongs to train or test depends on nothing but itself, so the splits are disjoint for any
    pair of seeds, and a policy that remembers what it trained on gains nothing on the test tasks.
    """

    families: tuple[str, ...] = ()
    """Names; empty means all."""
    agent_timeout_s: float = 120.0
    verifier_timeout_s: float = 30.0

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """``count`` tasks. A longer list begins with the shorter one; a task repeats only when its family ran dry.

        Raises:
            TaskError: an unknown family.
        """
        families = families_named(self.families)
        streams = [_stream(family, split, seed) for family in families]
        turns = zip(range(count), itertools.cycle(zip(families, streams, strict=True)), strict=False)
        return [
            self._task(f"{family.name}-{split}-{seed}-{number:05d}", family, next(stream))
            for number, (family, stream) in turns
        ]

    def _task(self, task_id: str, family: Family, draft: Draft) -> Task:
        return Task(
            task_id=task_id,
            prompt=draft.prompt,
            files={path: content.encode() for path, content in draft.files.items()},
            tests={"test.sh": test_script(draft.check)},
            oracle=draft.oracle,
            agent_timeout_s=self.agent_timeout_s,
            verifier_timeout_s=self.verifier_timeout_s,
            metadata={"family": family.name},
        )


def split_of(family: str, secret: str) -> Split:
    """The split that a secret belongs to, for ever."""
    return "test" if zlib.crc32(f"{family}:{secret}".encode()) % _TEST_SHARE == 0 else "train"


def _stream(family: Family, split: Split, seed: int) -> Iterator[Draft]:
    """Endless drafts of a split; secrets are all different until none is left."""
    rng = random.Random(f"{family.name}:{split}:{seed}")
    while True:
        yield from _each_secret_once(family, split, rng)


def _each_secret_once(family: Family, split: Split, rng: random.Random) -> Iterator[Draft]:
    used: set[str] = set()
    misses = 0
    while misses < _MISSES_TO_GIVE_UP:
        draft = family.draw(rng)
        if draft.secret in used or split_of(family.name, draft.secret) != split:
            misses += 1
            continue
        misses = 0
        used.add(draft.secret)
        yield draft
    if not used:
        raise TaskError(f"family {family.name!r} has no secret for the {split} split. Let it draw from more of them.")
