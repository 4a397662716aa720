"""What a family of procedural tasks is, and the hidden test that all of them share."""

from __future__ import annotations

import random
from typing import Protocol

import msgspec


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """One drawn task, before it has an id and a split."""

    secret: str
    """What the agent cannot know before it looks. Train and test tasks of a family never share one."""
    prompt: str
    files: dict[str, str]
    """Relative path in the work directory -> content."""
    oracle: tuple[str, ...]
    """Shell commands that solve it, one a turn."""
    check: str
    """A POSIX shell condition, run in the work directory the agent left; true if it solved the task."""


class Family(Protocol):
    """A kind of task. Stateless; everything random comes from ``rng``."""

    @property
    def name(self) -> str:
        """The name used in run files."""
        ...

    def draw(self, rng: random.Random) -> Draft:
        """One task. The same state of ``rng`` gives the same task."""
        ...


def test_script(check: str) -> bytes:
    """A ``tests/test.sh`` that grades by a condition: POSIX shell and coreutils only, full marks or none."""
    return (
        "#!/bin/sh\n"
        'logs="${SANDBOX_ROOT:-}/logs/verifier"\n'
        'mkdir -p "$logs" || exit 1\n'
        f'if {check}; then echo 1 > "$logs/reward.txt"; else echo 0 > "$logs/reward.txt"; fi\n'
    ).encode()
