"""A note spells a number; it is to be appended in digits to a list, whose lines must stay."""

from __future__ import annotations

import random

from longrein.tasks.families.base import Draft
from longrein.tasks.families.condition import condition_test
from longrein.tasks.families.spelled.numbers import draw_number, spell


class AppendNumber:
    """Read ``note.txt``, add one line to ``list.txt``."""

    name = "append_number"
    levels = (1,)
    needs = ()

    def draw(self, rng: random.Random, level: int) -> Draft:
        """One number out of 480, and two lines that are there already."""
        number = draw_number(rng)
        first, second = draw_number(rng), draw_number(rng)
        return Draft(
            secret=number,
            prompt="note.txt spells a number. Append it in digits to list.txt.",
            files={"note.txt": f"{spell(number)}\n", "list.txt": f"{first}\n{second}\n"},
            oracle=("cat note.txt", f"echo {number} >> list.txt"),
            tests=condition_test(f'[ "$(cat list.txt)" = "$(printf \'%s\\n\' {first} {second} {number})" ]'),
        )
