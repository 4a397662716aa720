"""Make symbolic links as a table says."""

from __future__ import annotations

import random

from longrein.tasks.families.base import Draft
from longrein.tasks.families.state_test import Check, only, state_test, unchanged
from longrein.tasks.families.words import words


class Links:
    """Links beside their targets; level 2 in another folder (relative), level 3 to the newest of several versions."""

    name = "links"
    levels = (1, 2, 3)
    needs = ()

    def draw(self, rng: random.Random, level: int) -> Draft:
        """Targets and names are the secret."""
        store, where, *rest = words(rng, 12)
        programs = rest[: rng.randint(3, 5)]
        aliases = rest[5 : 5 + len(programs)]
        versions = {program: sorted(rng.sample(range(1, 15), 3 if level >= 3 else 1)) for program in programs}
        targets = {program: f"{program}-{versions[program][-1]}" for program in programs}
        files: dict[str, str] = {
            f"{store}/{program}-{version}": f"{rng.getrandbits(32):08x}\n"
            for program in programs
            for version in versions[program]
        }
        files["links.txt"] = "".join(
            f"{alias} {program if level >= 3 else targets[program]}\n"
            for alias, program in zip(aliases, programs, strict=True)
        )
        places = {
            program: f"{store}/{alias}" if level == 1 else f"{where}/{alias}"
            for alias, program in zip(aliases, programs, strict=True)
        }
        texts = {program: targets[program] if level == 1 else f"../{store}/{targets[program]}" for program in programs}
        checks: list[Check] = [
            {"kind": "link", "path": places[program], "target": texts[program]} for program in programs
        ]
        what = (
            "the name of a file in " + store
            if level < 3
            else f"the name of a program, of which {store} has files NAME-NUMBER"
        )
        asked = f"Each line of links.txt has the name of a link and {what}. "
        asked += (
            f"Make these symbolic links in {store}"
            if level == 1
            else f"Make a folder {where} beside {store} with these symbolic links"
        )
        asked += ", to the file with the highest number (10 is higher than 9)" if level >= 3 else ""
        asked += ", each holding the bare file name." if level == 1 else f", each relative: ../{store}/FILE."
        newest = f'$(ls {store} | grep "^$p-" | sort -t- -k2n | tail -1)' if level >= 3 else "$p"
        made = f'ln -s "$p" {store}/"$a"' if level == 1 else f'ln -s "../{store}/{newest}" {where}/"$a"'
        start = "" if level == 1 else f"mkdir {where}; "
        return Draft(
            secret=f"{sorted(places.items())} {sorted(texts.items())}",
            prompt=asked,
            files=files,
            oracle=("cat links.txt", f"{start}while read -r a p; do {made}; done < links.txt"),
            tests=state_test(*checks, *unchanged(files), only([*files, *places.values()])),
            trivial={
                "copies": (
                    f"mkdir -p {where}; while read -r a p; do cp {store}/$p* {store}/$a; cp {store}/$p* {where}/$a; "
                    f"done < links.txt",
                ),
                "dangling": (
                    f"mkdir -p {where}; while read -r a p; do ln -s x {store}/$a; ln -s x {where}/$a; done < links.txt",
                ),
                "absolute": (
                    f"mkdir -p {where}; while read -r a p; do ln -s $PWD/{store}/$p {store}/$a; ln -s "
                    f"$PWD/{store}/$p {where}/$a; done < links.txt",
                ),
            },
        )
