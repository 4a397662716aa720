"""Write a program with options that filters standard input."""

from __future__ import annotations

import random

import msgspec

from longrein.tasks.families.base import Draft
from longrein.tasks.families.code_test import Program, code_test, written
from longrein.tasks.families.words import words


class _Tool(msgspec.Struct, frozen=True, kw_only=True):
    keep: str
    """Option that keeps lines holding a word."""
    limit: str
    """Option that keeps the last so many lines."""
    number: str
    """Flag that numbers lines."""
    upper: str
    """Flag that turns every line round."""
    mark: str
    width: int


class CommandLine:
    """One option at level 1, then two more, then a closing line of numbers."""

    name = "command_line"
    levels = (1, 2, 3)
    needs = ("python3",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        """Names of the options, the mark and the width are the secret."""
        names = words(rng, 4)
        tool = _Tool(
            keep=f"--{names[0]}", limit=f"--{names[1]}", number=f"--{names[2]}", upper=f"--{names[3]}",
            mark=rng.choice([": ", " | ", ") ", "> ", " = "]), width=rng.randint(2, 5),
        )  # fmt: skip
        runs = [_run(rng, tool, level) for _ in range(9)]
        runs += [((), ""), ((), "\n"), ((tool.keep, "nowhere"), runs[0][1])]
        argv, stdin = runs[0]
        return Draft(
            secret=f"{level} {tool}",
            prompt=f"Write a program tool.py, run as `python3 tool.py [options] < input`. It reads lines and prints "
            f"lines:\n"
            f"{_words(tool, level)}\nOptions come in any order. For example, with the options {' '.join(argv)} and "
            f""
            f""
            f"the input\n"
            f"{stdin}it prints\n{_filter(tool, level, argv, stdin)}",
            files={},
            oracle=(written("tool.py", _source(tool, level)),),
            tests=code_test(
                programs=[
                    Program(script="tool.py", argv=argv, stdin=stdin, expected=_filter(tool, level, argv, stdin))
                    for argv, stdin in runs
                ]
            ),
            trivial={
                "empty_program": (": > tool.py",),
                "copies_its_input": (written("tool.py", "import sys\nsys.stdout.write(sys.stdin.read())"),),
                "prints_the_example": (written("tool.py", f"print({_filter(tool, level, argv, stdin)!r})"),),
            },
        )


def _words(tool: _Tool, level: int) -> str:
    lines = [
        f"- {tool.keep} WORD: only lines that hold WORD (upper and lower case are the same) are printed.",
        f"- {tool.number}: before each printed line stand its number in the input (from 1, with zeros in front to "
        f"{tool.width} digits) and {tool.mark!r}.",
    ]
    if level >= 2:
        lines.append(f"- {tool.limit} N: of the lines that would be printed, only the last N are.")
        lines.append(f"- {tool.upper}: the characters of each printed line (not its number) come in reverse order.")
    if level >= 3:
        lines.append(
            "- At the end, always, a line PRINTED/READ: the number of lines printed before it and of lines read."
        )
    return "\n".join(lines)


def _run(rng: random.Random, tool: _Tool, level: int) -> tuple[tuple[str, ...], str]:
    vocabulary = words(rng, 5)
    lines = [
        " ".join(rng.choice(vocabulary).title() for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(4, 9))
    ]
    options: list[tuple[str, ...]] = [(tool.keep, rng.choice(vocabulary)[:4]), (tool.number,)]
    if level >= 2:
        options += [(tool.limit, str(rng.randint(1, 4))), (tool.upper,)]
    chosen = rng.sample(options, rng.randint(1, len(options)))
    return tuple(part for option in chosen for part in option), "".join(f"{line}\n" for line in lines)


def _filter(tool: _Tool, level: int, argv: tuple[str, ...], stdin: str) -> str:
    lines = stdin.splitlines()
    kept = list(enumerate(lines, 1))
    if tool.keep in argv:
        word = argv[argv.index(tool.keep) + 1].lower()
        kept = [(number, line) for number, line in kept if word in line.lower()]
    if tool.limit in argv:
        kept = kept[-int(argv[argv.index(tool.limit) + 1]) :]
    printed: list[str] = []
    for number, line in kept:
        shown = line[::-1] if tool.upper in argv else line
        printed.append(f"{number:0{tool.width}d}{tool.mark}{shown}" if tool.number in argv else shown)
    closing = [f"{len(printed)}/{len(lines)}"] if level >= 3 else []
    return "".join(f"{line}\n" for line in (*printed, *closing))


def _source(tool: _Tool, level: int) -> str:
    closing = '\nprint(f"{len(kept)}/{len(lines)}")' if level >= 3 else ""
    return f"""import sys

argv, lines = sys.argv[1:], sys.stdin.read().splitlines()
kept = list(enumerate(lines, 1))
if {tool.keep!r} in argv:
    word = argv[argv.index({tool.keep!r}) + 1].lower()
    kept = [(n, line) for n, line in kept if word in line.lower()]
if {tool.limit!r} in argv:
    kept = kept[-int(argv[argv.index({tool.limit!r}) + 1]):]
for n, line in kept:
    line = line[::-1] if {tool.upper!r} in argv else line
    print((str(n).zfill({tool.width}) + {tool.mark!r} if {tool.number!r} in argv else "") + line){closing}
"""
