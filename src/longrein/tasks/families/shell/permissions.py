"""Make the right files executable."""

from __future__ import annotations

import random

from longrein.tasks.families.base import Draft
from longrein.tasks.families.shell.trees import folders
from longrein.tasks.families.state_test import Check, only, says, state_test, unchanged
from longrein.tasks.families.words import words

_SHEBANGS = ("#!/bin/sh", "#!/usr/bin/env python3", "#!/bin/bash", "#!/usr/bin/perl")


class Permissions:
    """By first line; level 2 skips a folder, level 3 also translates a table of modes."""

    name = "permissions"
    levels = (1, 2, 3)
    needs = ()

    def draw(self, rng: random.Random, level: int) -> Draft:
        """Which files are scripts, and the table, are the secret."""
        places = folders(rng, 4)
        skipped = rng.choice([place for place in places if place])
        tree: dict[str, str] = {}
        for name in words(rng, rng.randint(10, 16)):
            begins = rng.choice([*_SHEBANGS, "# no script", " #!/bin/sh", "plain", "echo"])
            path = f"{rng.choice(places)}{name}{rng.choice(['', '.sh', '.txt', '.py'])}"
            tree[path] = f"{begins}\n{rng.getrandbits(32):08x}\n"
        tree[f"{skipped}{rng.choice('abc')}_run"] = "#!/bin/sh\n"
        tree["start"] = "#!/bin/sh\necho started\n"
        scripts = [
            path
            for path, text in tree.items()
            if text.startswith("#!") and not (level >= 2 and path.startswith(skipped))
        ]
        checks: list[Check] = [{"kind": "executable", "path": path, "executable": path in scripts} for path in tree]
        asked = (
            "Make every file below this folder executable (chmod +x) whose first two characters are #!, "
            "whatever its name"
        )
        asked += f", but none below {skipped}" if level >= 2 else ""
        match = f"! -path './{skipped}*'" if level >= 2 else ""
        command = (
            f"find . -type f {match} | while read -r f; do "
            'if [ "$(head -c 2 "$f")" = "#!" ]; then chmod +x "$f"; fi; done'
        )
        listed, octal = _table(rng)
        files = {**tree, "listing": listed} if level >= 3 else tree
        if level >= 3:
            asked += (
                ". Also, listing has lines with a mode as ls shows it (such as rwxr-x---) and a name; write "
                "modes.txt with a "
                "line for each, in the same order: the mode in octal (three digits), a space, the name"
            )
            checks += [{"kind": "executable", "path": "listing", "executable": False}, says("modes.txt", octal)]
            command += (
                "; while read -r m n; do o=; for i in 0 3 6; do p=${m:$i:3}; d=0; [ ${p:0:1} = r ] && d=$((d+4)); "
                "[ ${p:1:1} = w ] && d=$((d+2)); [ ${p:2:1} = x ] && d=$((d+1)); o=$o$d; done; echo $o $n; done "
                "< listing > modes.txt"
            )
        return Draft(
            secret=f"{sorted(tree.items())}{listed}",
            prompt=f"{asked}. No other file may become executable, and no content may change.",
            files=files,
            oracle=("find . -type f", command),
            tests=state_test(*checks, *unchanged(files), only([*files, *(["modes.txt"] if level >= 3 else [])])),
            trivial={
                "all_files": ("find . -type f -exec chmod +x {} +; cp listing modes.txt 2>/dev/null",),
                "by_ending": ("find . -name '*.sh' -exec chmod +x {} +; touch modes.txt",),
                "only_this_folder": ("chmod +x * 2>/dev/null; cp listing modes.txt 2>/dev/null",),
            },
        )


def _table(rng: random.Random) -> tuple[str, str]:
    modes = {name: rng.randrange(0o1000) for name in words(rng, 8)}
    listed = "".join(
        f"{''.join(letter if mode >> (8 - at) & 1 else '-' for at, letter in enumerate('rwxrwxrwx'))} {name}\n"
        for name, mode in modes.items()
    )
    return listed, "".join(f"{mode:03o} {name}\n" for name, mode in modes.items())
