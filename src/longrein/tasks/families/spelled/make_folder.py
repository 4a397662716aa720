"""A note spells a number; a folder is to be named by it, in digits."""

from __future__ import annotations

import random

from longrein.tasks.families.base import Draft
from longrein.tasks.families.condition import condition_test
from longrein.tasks.families.spelled.numbers import draw_number, spell


class MakeFolder:
    """Read ``note.txt``, make a folder."""

    name = "make_folder"
    levels = (1,)
    needs = ()

    def draw(self, rng: random.Random, level: int) -> Draft:
        """One number out of 480. Nothing but the note and the folder may be there: no folder for every number."""
        number = draw_number(rng)
        return Draft(
            secret=number,
            prompt="note.txt spells a number. Make a folder named that number in digits.",
            files={"note.txt": f"{spell(number)}\n"},
            oracle=("cat note.txt", f"mkdir {number}"),
            tests=condition_test(f'[ -d {number} ] && [ ! -L {number} ] && [ "$(find . ! -name . | wc -l)" -eq 2 ]'),
        )
