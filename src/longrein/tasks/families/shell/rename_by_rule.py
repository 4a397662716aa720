"""Rename many files by a rule."""

from __future__ import annotations

import random

from longrein.tasks.families.base import Draft
from longrein.tasks.families.state_test import has_bytes, only, state_test
from longrein.tasks.families.words import words


class RenameByRule:
    """A new ending; level 2 pads numbers, level 3 sorts into folders by date, too."""

    name = "rename_by_rule"
    levels = (1, 2, 3)
    needs = ()

    def draw(self, rng: random.Random, level: int) -> Draft:
        """Names and rule are the secret."""
        prefix, new, old_ending, new_ending = words(rng, 4)
        numbers = sorted(rng.sample(range(1, 200), rng.randint(6, 12)))
        width = rng.randint(4, 6)
        others = {f"{name}.{rng.choice(['txt', 'md'])}": f"{name}\n" for name in words(rng, 4)}
        dates = {n: f"20{rng.randint(10, 29)}-{rng.randint(1, 12):02d}" for n in numbers}
        old = {
            n: f"{prefix}_{dates[n]}_{n}.{old_ending}" if level >= 3 else f"{prefix}_{n}.{old_ending}" for n in numbers
        }
        number = {n: f"{n:0{width}d}" if level >= 2 else str(n) for n in numbers}
        renamed = {n: (f"{dates[n]}/" if level >= 3 else "") + f"{new}-{number[n]}.{new_ending}" for n in numbers}
        content = {n: f"{rng.getrandbits(48):012x}\n" for n in numbers}
        parts = [f"Rename every file {prefix}_{'DATE_' * (level >= 3)}NUMBER.{old_ending} to {new}-NUMBER.{new_ending}"]
        parts += [f"NUMBER gets zeros in front to {width} digits"] if level >= 2 else []
        parts += ["and put it into a folder named DATE (a year and a month, such as 2020-07)"] if level >= 3 else []
        strip = "n=${f#*_}; n=${n%.*}"
        if level >= 3:
            strip = "r=${f#*_}; d=${r%%_*}; n=${r#*_}; n=${n%.*}; mkdir -p $d"
        target = (
            ("$d/" if level >= 3 else "")
            + f"{new}-"
            + (f"$(printf %0{width}d $n)" if level >= 2 else "$n")
            + f".{new_ending}"
        )
        return Draft(
            secret=f"{prefix} {new} {old_ending} {new_ending} {list(old.values())}",
            prompt=f"{'; '.join(parts)}. Touch nothing else.",
            files={**{old[n]: content[n] for n in numbers}, **others},
            oracle=("ls", f'for f in {prefix}_*.{old_ending}; do {strip}; mv "$f" "{target}"; done'),
            tests=state_test(
                *(has_bytes(renamed[n], content[n].encode()) for n in numbers),
                *(has_bytes(path, text.encode()) for path, text in others.items()),
                only([*renamed.values(), *others]),
            ),
            trivial={
                "copies_instead": (f'for f in {prefix}_*.{old_ending}; do {strip}; cp "$f" "{target}"; done',),
                "only_the_first": (f'for f in {prefix}_*.{old_ending}; do {strip}; mv "$f" "{target}"; break; done',),
                "empty_files": (f'for f in {prefix}_*.{old_ending}; do {strip}; : > "{target}"; rm "$f"; done',),
                "removes_all": ("rm -rf *",),
            },
        )
