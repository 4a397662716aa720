"""A file holds a number in digits; it is to be spelled out."""

from __future__ import annotations

import random

from longrein.tasks.families.base import Draft
from longrein.tasks.families.condition import condition_test
from longrein.tasks.families.spelled.numbers import draw_number, spell


class SpellNumber:
    """Read ``code.txt``, write ``words.txt``."""

    name = "spell_number"
    levels = (1,)
    needs = ()

    def draw(self, rng: random.Random, level: int) -> Draft:
        """One number out of 480."""
        number = draw_number(rng)
        return Draft(
            secret=number,
            prompt="code.txt holds a number. Spell its digits in words.txt.",
            files={"code.txt": f"{number}\n"},
            oracle=("cat code.txt", f"echo {spell(number)} > words.txt"),
            tests=condition_test(f"[ \"$(cat words.txt)\" = '{spell(number)}' ]"),
        )
