"""What a family of procedural tasks is."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Protocol

import msgspec


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """One drawn task, before it has an id and a split."""

    secret: str
    """What makes this task another than its siblings: what the agent cannot know before it looks, or the very
    specification. Train and test tasks of a family never share one."""
    prompt: str
    files: Mapping[str, str | bytes]
    """Relative path in the work directory -> content; text is written as UTF-8."""
    oracle: tuple[str, ...]
    """Shell commands that solve it, one a turn."""
    tests: Mapping[str, bytes]
    """The hidden test: relative path under ``/tests`` -> content; ``test.sh`` among them."""
    trivial: Mapping[str, tuple[str, ...]] = {}
    """Answers that must score 0, by name: shell commands of somebody who did not do the work."""


class Family(Protocol):
    """A kind of task. Stateless; everything random comes from ``rng``."""

    @property
    def name(self) -> str:
        """The name used in run files."""
        ...

    @property
    def levels(self) -> tuple[int, ...]:
        """The difficulties it can be drawn at, the easiest first, from 1 on."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Programs that the agent's and the verifier's sandbox must have, beside bash and coreutils."""
        ...

    def draw(self, rng: random.Random, level: int) -> Draft:
        """One task of a level of :attr:`levels`. The same state of ``rng`` gives the same task."""
        ...
