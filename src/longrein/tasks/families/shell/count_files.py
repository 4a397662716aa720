"""Count files of a tree by name and by content."""

from __future__ import annotations

import random

from longrein.tasks.families.base import Draft
from longrein.tasks.families.shell.trees import file_tree
from longrein.tasks.families.state_test import only, says, state_test, unchanged
from longrein.tasks.families.words import words

_ENDINGS = ("txt", "log", "md", "csv", "cfg")


class CountFiles:
    """By ending; level 2 by a word inside, level 3 the lines that hold it, file by file."""

    name = "count_files"
    levels = (1, 2, 3)
    needs = ()

    def draw(self, rng: random.Random, level: int) -> Draft:
        """The tree is the secret."""
        wanted, ending = words(rng, 1)[0], rng.choice(_ENDINGS)
        tree = file_tree(rng, rng.randint(14, 24), _ENDINGS, wanted)
        hits = {
            path: sum(wanted in line for line in text.split("\n"))
            for path, text in tree.items()
            if path.endswith(f".{ending}")
        }
        found = {path: count for path, count in sorted(hits.items()) if count}
        with_word = sum(1 for count in hits.values() if count)
        listing = "".join(f"{count} {path}\n" for path, count in found.items())
        asked, answer, command = [
            (
                f"How many files below this folder have a name that ends in .{ending}? Write the number to answer.out.",
                f"{len(hits)}\n",
                f"find . -type f -name '*.{ending}' | wc -l > answer.out",
            ),
            (
                f"Write two lines to answer.out: how many files below this folder have a name that ends in "
                f".{ending}, and "
                f"how many of these hold the word {wanted}.",
                f"{len(hits)}\n{with_word}\n",
                f"find . -type f -name '*.{ending}' | wc -l > answer.out; grep -rl --include='*.{ending}' {wanted} "
                f". | wc -l "
                ">> answer.out",
            ),
            (
                f"For each file below this folder whose name ends in .{ending} and that holds the word {wanted}, "
                f"write a line "
                "to answer.out: how many of its lines hold the word, a space, and its path (without ./ in front). "
                "Sort the "
                "lines by path, in byte order.",
                listing,
                f"grep -rc --include='*.{ending}' {wanted} . | sed 's|^\\./||' | awk -F: '$2 > 0 {{print $2, $1}}' | "
                "LC_ALL=C sort -k2 > answer.out",
            ),
        ][level - 1]
        return Draft(
            secret=f"{wanted} {ending} {listing} {len(hits)}",
            prompt=asked,
            files=tree,
            oracle=(command,),
            tests=state_test(says("answer.out", answer), *unchanged(tree), only([*tree, "answer.out"])),
            trivial={
                "empty_answer": (": > answer.out",),
                "counts_all_files": ("find . -type f | wc -l > answer.out",),
                "lists_all_files": ("find . -type f > answer.out",),
                "zero": ("echo 0 > answer.out",),
            },
        )
