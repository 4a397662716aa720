"""Implement a function on a list of whole numbers from a specification in words."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable

import msgspec

from longrein.tasks.families.base import Draft
from longrein.tasks.families.code_test import Call, code_test, lazy_functions, written
from longrein.tasks.families.words import name_of

Numbers = list[int]


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the specification: in words, in Python, and as it is done here."""

    words: str
    code: str
    """A Python expression in ``xs``."""
    do: Callable[[Numbers], Numbers]


def _keep(k: int, r: int) -> _Step:
    return _Step(
        words=f"keep only the numbers that leave remainder {r} when divided by {k} (Python's %)",
        code=f"[x for x in xs if x % {k} == {r}]",
        do=lambda xs: [x for x in xs if x % k == r],
    )


def _scale(k: int, r: int) -> _Step:
    return _Step(
        words=f"replace each number x by {k}*x + {r}",
        code=f"[{k} * x + {r} for x in xs]",
        do=lambda xs: [k * x + r for x in xs],
    )


def _clip(k: int, r: int) -> _Step:
    low, high = -3 * r - 1, 4 * k + r
    return _Step(
        words=f"replace numbers below {low} by {low} and numbers above {high} by {high}",
        code=f"[min(max(x, {low}), {high}) for x in xs]",
        do=lambda xs: [min(max(x, low), high) for x in xs],
    )


def _every(k: int, r: int) -> _Step:
    start = r % k
    return _Step(
        words=f"keep the number at position {start} (counting from 0) and every {k}th one after it",
        code=f"xs[{start}::{k}]",
        do=lambda xs: xs[start::k],
    )


def _differences(k: int, r: int) -> _Step:
    return _Step(
        words=(
            f"replace the list by the differences of neighbours (each number minus the one before it), each plus "
            f"{k + r}"
        ),
        code=f"[b - a + {k + r} for a, b in zip(xs, xs[1:])]",
        do=lambda xs: [b - a + k + r for a, b in itertools.pairwise(xs)],
    )


def _distinct(k: int, r: int) -> _Step:
    return _Step(
        words=f"drop every number whose remainder modulo {k + 4} was seen earlier in the list",
        code=f"[x for i, x in enumerate(xs) if x % {k + 4} not in [y % {k + 4} for y in xs[:i]]]",
        do=lambda xs: [x for i, x in enumerate(xs) if x % (k + 4) not in [y % (k + 4) for y in xs[:i]]],
    )


def _rotate(k: int, r: int) -> _Step:
    turn = k + r
    return _Step(
        words=f"move the first {turn} numbers to the end (all of them, in their order, if there are fewer)",
        code=f"xs[{turn}:] + xs[:{turn}]",
        do=lambda xs: xs[turn:] + xs[:turn],
    )


def _running(k: int, r: int) -> _Step:
    start = k * r
    return _Step(
        words=f"replace each number by the sum of all numbers up to and including it, plus {start}",
        code=f"[sum(xs[: i + 1]) + {start} for i in range(len(xs))]",
        do=lambda xs: [sum(xs[: i + 1]) + start for i in range(len(xs))],
    )


_STEPS = (_keep, _scale, _clip, _every, _differences, _distinct, _rotate, _running)


class ImplementFunction:
    """Two to four steps, one after the other."""

    name = "implement_function"
    levels = (1, 2, 3)
    needs = ("python3",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        """Steps and their constants are the secret."""
        name = name_of(rng)
        inputs = [[], [0], [-7], *(_numbers(rng, rng.randint(2, 14)) for _ in range(15))]
        chosen, function = _chosen(rng, level, inputs)
        examples = [_numbers(rng, 6), _numbers(rng, 9)]
        shown = "\n".join(f"  {name}({xs}) == {function(xs)}" for xs in examples)
        steps = "\n".join(f"{number}. {step.words}" for number, step in enumerate(chosen, 1))
        return Draft(
            secret=json.dumps([step.code for step in chosen]),
            prompt=f"Write solution.py with a function {name}(xs). It takes a list of whole numbers, does the "
            f"following "
            f"steps in this order, and returns the resulting list. It must not change xs.\n{steps}\nFor "
            f""
            f""
            f"example:\n{shown}",
            files={},
            oracle=(written("solution.py", _source(name, chosen)),),
            tests=code_test(
                [Call(module="solution", name=name, arguments=(xs,), expected=function(xs)) for xs in inputs]
            ),
            trivial=lazy_functions(name, [((xs,), function(xs)) for xs in examples]),
        )


def _chosen(rng: random.Random, level: int, inputs: list[Numbers]) -> tuple[list[_Step], Callable[[Numbers], Numbers]]:
    """Steps that together say something of nearly every input."""
    while True:
        steps = [make(k := rng.randint(2, 9), rng.randrange(k)) for make in rng.sample(_STEPS, level + 1)]
        function = _of(steps)
        if len({str(function(xs)) for xs in inputs}) > len(inputs) // 2:
            return steps, function


def _of(steps: list[_Step]) -> Callable[[Numbers], Numbers]:
    def function(xs: Numbers) -> Numbers:
        for step in steps:
            xs = step.do(xs)
        return xs

    return function


def _source(name: str, steps: list[_Step]) -> str:
    lines = [f"    xs = {step.code}" for step in steps]
    return "\n".join([f"def {name}(xs):", *lines, "    return xs"])


def _numbers(rng: random.Random, count: int) -> Numbers:
    return [rng.randint(-40, 60) for _ in range(count)]
