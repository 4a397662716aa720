"""Numbers between digits and English words: the step that a model does in its head and a shell cannot.

Why tasks are built on it: a command line composes with itself, so ``cp "$(cat note)" out`` turns any task of
copying into a single command. Turning *seven two nine* into 729 needs a table of nine words, which no program of a
plain system holds and which does not fit into one turn of the demo's agent (``docs/tasks.md``). So the command
that uses the number has to be written after the output that spells it was read.
"""

from __future__ import annotations

import random

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGITS = "123456789"
"""No zero: small models write 5400 for *five four zero*, which is a gap in knowledge, not in acting."""
_EVEN = frozenset("2468")


def draw_number(rng: random.Random) -> str:
    """Three different digits, as a string.

    Never all even: each even digit's word has a letter of its own (w, u, x, g), so one short ``tr`` could
    translate such a number without anyone reading it.
    """
    while True:
        number = "".join(rng.sample(DIGITS, 3))
        if not _EVEN.issuperset(number):
            return number


def spell(number: str) -> str:
    """``"729"`` -> ``"seven two nine"``."""
    return " ".join(WORDS[int(digit) - 1] for digit in number)
