"""A note spells the name of a second note, which spells the number: three commands, each knowing the last output."""

from __future__ import annotations

import random

from longrein.tasks.families.base import Draft
from longrein.tasks.families.condition import condition_test
from longrein.tasks.families.spelled.numbers import draw_number, spell


class FollowNote:
    """Read ``note.txt``, read the file it names among three, write ``code.txt``."""

    name = "follow_note"
    levels = (1,)
    needs = ()

    def draw(self, rng: random.Random, level: int) -> Draft:
        """The right file's number is the secret; two other files spell other numbers."""
        where, number = draw_number(rng), draw_number(rng)
        files = {"note.txt": f"{spell(where)}\n", where: f"{spell(number)}\n"}
        while len(files) < 4:
            files.setdefault(draw_number(rng), f"{spell(draw_number(rng))}\n")
        return Draft(
            secret=number,
            prompt="note.txt spells a file name in digits. That file spells a number: write it in digits to code.txt.",
            files=files,
            oracle=("cat note.txt", f"cat {where}", f"echo {number} > code.txt"),
            tests=condition_test(f'[ "$(cat code.txt)" = {number} ]'),
        )
