"""A note spells a number; a file is to be renamed to it, in digits."""

from __future__ import annotations

import random

from longrein.tasks.families.base import Draft
from longrein.tasks.families.condition import condition_test
from longrein.tasks.families.spelled.numbers import draw_number, spell


class RenameFile:
    """Read ``note.txt``, rename ``box.txt``."""

    name = "rename_file"
    levels = (1,)
    needs = ()

    def draw(self, rng: random.Random, level: int) -> Draft:
        """One number out of 480. The box must arrive whole, and nothing else may appear: no file for every number."""
        number = draw_number(rng)
        content = f"{rng.getrandbits(32):08x}"
        return Draft(
            secret=number,
            prompt="note.txt spells a number. Rename box.txt to that number in digits.",
            files={"note.txt": f"{spell(number)}\n", "box.txt": f"{content}\n"},
            oracle=("cat note.txt", f"mv box.txt {number}"),
            tests=condition_test(f'[ "$(cat {number})" = {content} ] && [ "$(find . ! -name . | wc -l)" -eq 2 ]'),
        )
