"""A note spells a number; it is to be written in digits."""

from __future__ import annotations

import random

from longrein.tasks.families.base import Draft
from longrein.tasks.families.condition import condition_test
from longrein.tasks.families.spelled.numbers import draw_number, spell


class WriteNumber:
    """Read ``note.txt``, write ``code.txt``."""

    name = "write_number"
    levels = (1,)
    needs = ()

    def draw(self, rng: random.Random, level: int) -> Draft:
        """One number out of 480."""
        number = draw_number(rng)
        return Draft(
            secret=number,
            prompt="note.txt spells a number. Write it in digits to code.txt.",
            files={"note.txt": f"{spell(number)}\n"},
            oracle=("cat note.txt", f"echo {number} > code.txt"),
            tests=condition_test(f'[ "$(cat code.txt)" = {number} ]'),
        )
