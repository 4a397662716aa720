"""Find files of equal content, keep one of each."""

from __future__ import annotations

import random

from longrein.tasks.families.base import Draft
from longrein.tasks.families.shell.trees import folders
from longrein.tasks.families.state_test import Check, only, says, state_test, unchanged
from longrein.tasks.families.words import words


class Deduplicate:
    """Sorted distinct lines; level 2 equal files in one folder, level 3 in a tree."""

    name = "deduplicate"
    levels = (1, 2, 3)
    needs = ()

    def draw(self, rng: random.Random, level: int) -> Draft:
        """The content is the secret."""
        return _lines(rng) if level == 1 else _files(rng, level)


def _lines(rng: random.Random) -> Draft:
    lines = [rng.choice([word, word.title(), f"{word} {rng.randint(1, 3)}"]) for word in words(rng, 25)]
    lines += rng.choices(lines, k=15)
    rng.shuffle(lines)
    files = {"a.txt": "".join(f"{line}\n" for line in lines[:18]), "b.txt": "".join(f"{line}\n" for line in lines[18:])}
    counts = {line: lines.count(line) for line in lines}
    twice = sorted(line for line, count in counts.items() if count >= 2)
    return Draft(
        secret="".join(files.values()),
        prompt="Write all.txt with every different line of a.txt and b.txt once, in byte order, and twice.txt with "
        "those that "
        "occur at least twice in both files together, in byte order, "
        ""
        "too.",
        files=files,
        oracle=("LC_ALL=C sort -u a.txt b.txt > all.txt; LC_ALL=C sort a.txt b.txt | uniq -d > twice.txt",),
        tests=state_test(
            says("all.txt", "".join(f"{line}\n" for line in sorted(counts))),
            says("twice.txt", "".join(f"{line}\n" for line in twice)),
            *unchanged(files),
        ),
        trivial={
            "empty_files": (": > all.txt; : > twice.txt",),
            "joined": ("cat a.txt b.txt > all.txt; cp all.txt twice.txt",),
            "sorted_only": ("LC_ALL=C sort a.txt b.txt > all.txt; cp all.txt twice.txt",),
        },
    )


def _files(rng: random.Random, level: int) -> Draft:
    places = folders(rng, 4) if level >= 3 else [""]
    contents = [f"{rng.getrandbits(64):016x}\n" * rng.randint(1, 3) for _ in range(rng.randint(5, 8))]
    drawn = contents + rng.choices(contents, k=rng.randint(5, 9))
    files = {
        f"{rng.choice(places)}{name}": content for name, content in zip(words(rng, len(drawn)), drawn, strict=True)
    }
    first: dict[str, str] = {}
    for path in sorted(files):
        first.setdefault(files[path], path)
    removed = sorted(path for path in files if path not in first.values())
    kept = {path: files[path] for path in first.values()}
    checks: list[Check] = [
        says("removed.txt", "".join(f"{path}\n" for path in removed)),
        *unchanged(kept),
        *({"kind": "absent", "path": path} for path in removed),
        only([*kept, "removed.txt"]),
    ]
    where = "below this folder" if level >= 3 else "in this folder"
    return Draft(
        secret=f"{sorted(files.items())}",
        prompt=f"Of the files {where} that have the same content, keep the one whose path comes first in byte order "
        f"and remove "
        "the others. Write the paths of those removed (without ./ in front) to removed.txt, one a line, in byte "
        ""
        "order.",
        files=files,
        oracle=(
            "find . -type f | sed 's|^\\./||' | LC_ALL=C sort | xargs sha256sum | awk 'seen[$1]++ {print $2}' > "
            "/tmp/removed.$$; "
            "xargs rm < /tmp/removed.$$; mv /tmp/removed.$$ removed.txt",
        ),
        tests=state_test(*checks),
        trivial={
            "empty_answer": (": > removed.txt",),
            "only_the_list": (
                "find . -type f | sed 's|^\\./||' | LC_ALL=C sort | xargs sha256sum | awk 'seen[$1]++ {print $2}' > "
                "removed.txt",
            ),
            "all_removed": ("find . -type f -delete; : > removed.txt",),
            "all_listed": ("find . -type f | sed 's|^\\./||' | LC_ALL=C sort > removed.txt",),
        },
    )
