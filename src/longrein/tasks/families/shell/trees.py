"""Folders full of text files."""

from __future__ import annotations

import random
from collections.abc import Sequence

from longrein.tasks.families.words import words


def folders(rng: random.Random, count: int) -> list[str]:
    """Paths of folders, some inside others; ``""`` is the first. No file is named like them."""
    made = [""]
    for name in words(rng, count):
        made.append(f"{rng.choice(made)}{name}.d/")
    return made


def file_tree(rng: random.Random, count: int, endings: Sequence[str], wanted: str) -> dict[str, str]:
    """So many files with these endings, each at least once; about half of them hold a word, in one or more lines."""
    places = folders(rng, 5)
    tree: dict[str, str] = {}
    for number, name in enumerate(words(rng, count)):
        ending = endings[number] if number < len(endings) else rng.choice(endings)
        lines = [" ".join(word for word in words(rng, 4) if wanted not in word) for _ in range(rng.randint(2, 6))]
        if rng.random() < 0.6:
            lines = [f"{line} {wanted}" if rng.random() < 0.5 else line for line in lines]
        tree[f"{rng.choice(places)}{name}.{ending}"] = "".join(f"{line}\n" for line in lines)
    return tree
