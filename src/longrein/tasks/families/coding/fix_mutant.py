"""Mend a function that somebody broke in one or more places."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from longrein.tasks.families.base import Draft
from longrein.tasks.families.code_test import Call, code_test, lazy_functions, written
from longrein.tasks.families.words import name_of


class _Program(msgspec.Struct, frozen=True, kw_only=True):
    """A right function as text, what it is to do, and breakages that change what it gives."""

    does: str
    source: str
    """``NAME``, ``K`` and ``R`` are filled in."""
    breakages: tuple[tuple[str, str], ...]
    """Text that occurs once -> what breaks it. No breakage makes a loop endless."""
    inputs: Callable[[random.Random], tuple[Any, ...]]


def _numbers(rng: random.Random) -> tuple[Any, ...]:
    return ([rng.randint(-20, 40) for _ in range(rng.choice([0, 1, 2, 5, 9, 13]))],)


def _text(rng: random.Random) -> tuple[Any, ...]:
    return ("".join(rng.choice("aabbc dEF1") for _ in range(rng.choice([0, 1, 4, 9, 17]))),)


def _spans(rng: random.Random) -> tuple[Any, ...]:
    starts = [rng.randint(0, 30) for _ in range(rng.choice([0, 1, 3, 6]))]
    return ([[start, start + rng.randint(0, 8)] for start in starts],)


def _grid(rng: random.Random) -> tuple[Any, ...]:
    height, width = rng.randint(1, 4), rng.randint(1, 4)
    return ([[rng.randint(-5, 9) for _ in range(width)] for _ in range(height)],)


_PROGRAMS = (
    _Program(
        does="returns the pairs [length + R, value] of the runs of neighbours in xs whose floor division by K is "
        "equal; value is "
        "that quotient",
        source="""def NAME(xs):
    runs = []
    start = 0
    for i in range(1, len(xs) + 1):
        if i == len(xs) or xs[i] // K != xs[start] // K:
            runs.append([i - start + R, xs[start] // K])
            start = i
    return runs
""",
        breakages=(
            ("range(1, len(xs) + 1)", "range(1, len(xs))"),
            ("xs[i] // K != xs[start] // K", "xs[i] != xs[start]"),
            ("i - start + R", "i - start"),
            ("start = i\n", "start = i - 1\n"),
            ("xs[start] // K])", "xs[i - 1]])"),
        ),
        inputs=_numbers,
    ),
    _Program(
        does="joins intervals [start, end] that overlap or are at most K apart, and returns those of length at "
        "least R, "
        "sorted",
        source="""def NAME(spans):
    merged = []
    for start, end in sorted(spans):
        if merged and start - merged[-1][1] <= K:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return [span for span in merged if span[1] - span[0] >= R]
""",
        breakages=(
            ("in sorted(spans)", "in spans"),
            ("<= K:", "< K:"),
            ("= max(merged[-1][1], end)", "= end"),
            (">= R]", "> R]"),
            ("merged[-1][1] <= K", "merged[-1][0] <= K"),
        ),
        inputs=_spans,
    ),
    _Program(
        does="encodes text: each letter moves K places on in the alphabet (from z to a), keeping its case; each "
        "digit d "
        "becomes (d + R) % 10; all else stays; then the text is "
        ""
        "reversed",
        source="""def NAME(text):
    out = []
    for c in text:
        if c.isalpha():
            base = ord("a") if c.islower() else ord("A")
            out.append(chr((ord(c) - base + K) % 26 + base))
        elif c.isdigit():
            out.append(str((int(c) + R) % 10))
        else:
            out.append(c)
    return "".join(reversed(out))
""",
        breakages=(
            ("base + K) % 26", "base + K) % 25"),
            ('if c.islower() else ord("A")', 'if c.islower() else ord("a")'),
            ("(int(c) + R) % 10", "(int(c) - R) % 10"),
            ('"".join(reversed(out))', '"".join(out)'),
            ("- base + K)", "- base - K)"),
        ),
        inputs=_text,
    ),
    _Program(
        does="returns the sums of the columns of a grid, each number multiplied by K where its row number (from 0) is "
        "odd, and increased by R where its column number is odd",
        source="""def NAME(grid):
    sums = [0] * len(grid[0])
    for y, row in enumerate(grid):
        for x, value in enumerate(row):
            if y % 2 == 1:
                value *= K
            if x % 2 == 1:
                value += R
            sums[x] += value
    return sums
""",
        breakages=(
            ("if y % 2 == 1", "if y % 2 == 0"),
            ("if x % 2 == 1", "if y % 2 == 1 and x"),
            ("sums[x] += value", "sums[x] = value"),
            ("value += R", "value -= R"),
            ("value *= K", "value += K"),
        ),
        inputs=_grid,
    ),
    _Program(
        does="returns the positions in xs of numbers that are larger than each of the K numbers before them (or as "
        "many "
        "as there are) and differ by at least R from the one right before; position 0 counts if there is "
        ""
        "one",
        source="""def NAME(xs):
    found = []
    for i, x in enumerate(xs):
        window = xs[max(0, i - K) : i]
        if all(x > other for other in window) and (i == 0 or abs(x - xs[i - 1]) >= R):
            found.append(i)
    return found
""",
        breakages=(
            ("max(0, i - K) : i]", "max(0, i - K) : i - 1]"),
            ("x > other", "x >= other"),
            ("all(", "any("),
            (">= R)", "> R + 1)"),
            ("max(0, i - K)", "max(0, i - K + 1)"),
        ),
        inputs=_numbers,
    ),
    _Program(
        does="counts the words of text (separated by white space) by length, lengths above K counting as K; returns "
        "pairs [length, count] of counts of at least one, the most frequent first, shorter ones first among equals; "
        "every count is increased by R",
        source="""def NAME(text):
    counts = {}
    for word in text.split():
        length = min(len(word), K)
        counts[length] = counts.get(length, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [[length, count + R] for length, count in ordered]
""",
        breakages=(
            ("text.split()", 'text.split("a")'),
            ("min(len(word), K)", "len(word)"),
            ("counts.get(length, 0) + 1", "1"),
            ("(-item[1], item[0])", "(item[1], -item[0])"),
            ("count + R]", "count]"),
        ),
        inputs=lambda rng: (" ".join("x" * rng.randint(1, 12) + "a" for _ in range(rng.choice([0, 1, 5, 9]))),),
    ),
)


class FixMutant:
    """As many breakages as the level says."""

    name = "fix_mutant"
    levels = (1, 2, 3)
    needs = ("python3",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        """Program, constants and breakages are the secret."""
        program = rng.choice(_PROGRAMS)
        name, k, r = name_of(rng), rng.randint(2, 9), rng.randint(2, 9)
        fill = {"NAME": name, "K": str(k), "R": str(r)}
        right = _filled(program.source, fill)
        broken = program.source
        chosen = [pair for pair in rng.sample(program.breakages, len(program.breakages)) if broken.count(pair[0]) == 1]
        for old, new in chosen[:level]:
            broken = broken.replace(old, new)
        function = _loaded(right, name)
        inputs = [program.inputs(rng) for _ in range(40)]
        examples = [(arguments, function(*arguments)) for arguments in (program.inputs(rng), program.inputs(rng))]
        shown = "\n".join(f"  {name}({', '.join(map(repr, a))}) == {result!r}" for a, result in examples)
        return Draft(
            secret=f"{_filled(broken, {**fill, 'NAME': 'f'})}",
            prompt=f"The function {name} in solution.py is wrong in {level} place{'s' * (level > 1)}. It should do "
            f"this: it "
            f"{_filled(program.does, fill)}.\nMend it; keep its name. For example, it should be "
            f""
            f"that\n{shown}",
            files={"solution.py": _filled(broken, fill)},
            oracle=("cat solution.py", written("solution.py", right)),
            tests=code_test([Call(module="solution", name=name, arguments=a, expected=function(*a)) for a in inputs]),
            trivial=lazy_functions(name, examples),
        )


def _filled(text: str, values: dict[str, str]) -> str:
    for mark in ("NAME", "K", "R"):
        text = text.replace(mark, values[mark])
    return text


def _loaded(source: str, name: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(source, namespace)  # our own text, see _PROGRAMS
    return namespace[name]
