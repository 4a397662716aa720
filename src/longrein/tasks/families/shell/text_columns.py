"""Rearrange columns of text."""

from __future__ import annotations

import random

from longrein.tasks.families.base import Draft
from longrein.tasks.families.state_test import says, state_test, unchanged
from longrein.tasks.families.words import FIRST_NAMES, words


class TextColumns:
    """Pick and swap columns; level 2 filters, level 3 adds a computed column and a footer."""

    name = "text_columns"
    levels = (1, 2, 3)
    needs = ()

    def draw(self, rng: random.Random, level: int) -> Draft:
        """Table and rule are the secret."""
        names = rng.sample(FIRST_NAMES, rng.randint(9, 16))
        rows = [(name, rng.choice(words(rng, 3)), rng.randint(1, 90), rng.randint(1, 90)) for name in names]
        order, mark = rng.sample(range(4), 3), rng.choice([";", "|", "\t", ":"])
        least, factor = rng.randint(20, 50), rng.randint(2, 9)
        kept = [row for row in rows if level < 2 or row[2] >= least]
        lines = [
            mark.join([*(str(row[i]) for i in order), *([str(row[2] * factor + row[3])] if level >= 3 else [])])
            for row in kept
        ]
        lines += [f"{len(kept)} of {len(rows)}"] if level >= 3 else []
        shown = {"\t": "a tab"}.get(mark, repr(mark))
        numbers = ", ".join(str(i + 1) for i in order)
        asked = f"Write output.txt with columns {numbers} of table.txt, in this order, with {shown} between them"
        asked += f", leaving out lines whose column 3 is below {least}" if level >= 2 else ""
        asked += (
            f"; add a last column with column 3 times {factor} plus column 4; and end with a line that says KEPT of "
            f"READ, the "
            "number of lines kept and the number of lines of the table"
            if level >= 3
            else ""
        )
        columns = ", ".join(f"${i + 1}" for i in order) + (f", $3 * {factor} + $4" if level >= 3 else "")
        when = f"$3 >= {least} " if level >= 2 else ""
        footer = ' END {print k + 0 " of " NR}' if level >= 3 else ""
        escaped = "\\t" if mark == "\t" else mark
        files = {"table.txt": "".join(f"{a} {b}   {c} {d}\n" for a, b, c, d in rows)}
        return Draft(
            secret=f"{order} {mark} {files['table.txt']}",
            prompt=f"{asked}. Columns of table.txt stand apart by one or more spaces. Lines keep their order.",
            files=files,
            oracle=(
                "head -3 table.txt",
                f"awk -v OFS='{escaped}' '{when}{{k++; print {columns}}}{footer}' table.txt > output.txt",
            ),
            tests=state_test(says("output.txt", "".join(f"{line}\n" for line in lines)), *unchanged(files)),
            trivial={
                "empty_output": (": > output.txt",),
                "copies_the_table": ("cp table.txt output.txt",),
                "all_columns": (f"awk -v OFS='{escaped}' '{{print $1, $2, $3, $4}}' table.txt > output.txt",),
                "first_line_only": (f"awk -v OFS='{escaped}' 'NR == 1 {{print {columns}}}' table.txt > output.txt",),
            },
        )
