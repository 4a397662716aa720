"""Change settings in sections of configuration files."""

from __future__ import annotations

import random

from longrein.tasks.families.base import Draft
from longrein.tasks.families.state_test import has_bytes, only, state_test
from longrein.tasks.families.words import words

Sections = dict[str, dict[str, str]]


class EditConfig:
    """One setting of one section; level 2 in several files, level 3 also one that is commented out."""

    name = "edit_config"
    levels = (1, 2, 3)
    needs = ("python3",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        """Settings and values are the secret."""
        sections, keys = words(rng, 4), words(rng, 5)
        section, key, off_key = rng.choice(sections[1:]), keys[0], keys[-1]
        value = str(rng.randint(100, 99999))
        count = 1 if level == 1 else rng.randint(3, 4)
        paths = [f"{name}.ini" for name in words(rng, count)]
        before = {path: _text(_drawn(rng, sections, keys), off_key, section if level >= 3 else "") for path in paths}
        after = {path: _edited(text, section, key, value, off_key, level) for path, text in before.items()}
        other = {"notes.txt": f"[{section}]\n{key} = 1\n"}
        asked = f"In section [{section}] of {'every .ini file here' if count > 1 else paths[0]}, set {key} to {value}"
        asked += f", and take the # away before {off_key} there" if level >= 3 else ""
        program = f"s/^{key} = .*/{key} = {value}/" + (f"; s/^# *\\({off_key} =\\)/\\1/" if level >= 3 else "")
        return Draft(
            secret=f"{section} {key} {value} {list(before.values())}",
            prompt=f"{asked}. The same names in other sections, and all else, must stay exactly as they are.",
            files={**before, **other},
            oracle=(f"cat {paths[0]}", f"sed -i '/^\\[{section}\\]/,/^\\[/ {{{program}}}' *.ini"),
            tests=state_test(
                *(has_bytes(path, text.encode()) for path, text in {**after, **other}.items()),
                only([*paths, "notes.txt"]),
            ),
            trivial={
                "everywhere": (f"sed -i '{program}' *.ini",),
                "appended": (f"for f in *.ini; do printf '[{section}]\\n{key} = {value}\\n' >> $f; done",),
                "only_that_line": (f"for f in *.ini; do echo '{key} = {value}' > $f; done",),
            },
        )


def _drawn(rng: random.Random, sections: list[str], keys: list[str]) -> Sections:
    return {
        section: {key: str(rng.randint(1, 99)) for key in rng.sample(keys[:-1], 4)}
        for section in rng.sample(sections, 4)
    }


def _text(sections: Sections, off_key: str, off_in: str) -> str:
    lines: list[str] = ["; made by hand"]
    for number, (section, settings) in enumerate(sections.items()):
        lines += [f"[{section}]", *(f"{key} = {value}" for key, value in settings.items())]
        # Level 3 has it switched off in each section.
        lines += [f"# {off_key} = {number}"] if off_in else []
        lines += [""]
    return "\n".join(lines)


def _edited(text: str, section: str, key: str, value: str, off_key: str, level: int) -> str:
    lines: list[str] = []
    here = ""
    for line in text.split("\n"):
        here = line if line.startswith("[") else here
        if here == f"[{section}]" and line.startswith(f"{key} = "):
            line = f"{key} = {value}"  # noqa: PLW2901 - the edit
        if here == f"[{section}]" and level >= 3 and line.startswith(f"# {off_key} = "):
            line = line.removeprefix("# ")  # noqa: PLW2901 - the edit
        lines.append(line)
    return "\n".join(lines)
