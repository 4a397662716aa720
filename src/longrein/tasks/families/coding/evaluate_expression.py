"""Write an evaluator of a little language whose operators bind in an unusual order."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from longrein.tasks.families.base import Draft
from longrein.tasks.families.code_test import Call, code_test, lazy_functions, written

_MEANINGS = {
    "a + b + 1": "their sum plus one",
    "a * b - a": "their product minus the left",
    "max(a, b)": "the larger",
    "min(a, b)": "the smaller",
    "abs(a - b)": "their distance",
    "2 * a - b": "twice the left minus the right",
    "a + 3 * b": "the left plus three times the right",
}


class _Operator(msgspec.Struct, frozen=True, kw_only=True):
    sign: str
    code: str


class _Language(msgspec.Struct, frozen=True, kw_only=True):
    operators: tuple[_Operator, ...]
    """The one that binds tightest first."""
    from_right: bool
    """Among equals, the rightmost operator is done first."""
    brackets: str
    """Opening and closing; empty without."""


class EvaluateExpression:
    """Two operators; level 2 has brackets, level 3 a third and fourth operator."""

    name = "evaluate_expression"
    levels = (1, 2, 3)
    needs = ("python3",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        """Signs, meanings, order and brackets are the secret."""
        count = 4 if level >= 3 else 2
        signs, meanings = rng.sample("+-*/%&!?@^~", count), rng.sample(list(_MEANINGS), count)
        language = _Language(
            operators=tuple(_Operator(sign=sign, code=code) for sign, code in zip(signs, meanings, strict=True)),
            from_right=rng.random() < 0.5,
            brackets=rng.choice(["()", "[]", "{}", "<>"]) if level >= 2 else "",
        )
        texts = ["7", " 0 ", *(_text(rng, language, rng.randint(1, 6), 2) for _ in range(18))]
        examples = [
            ((text,), _value(language, text)) for text in (_text(rng, language, 3, 1), _text(rng, language, 4, 2))
        ]
        shown = "\n".join(f"  evaluate({text!r}) == {value!r}" for (text,), value in examples)
        return Draft(
            secret=f"{language}",
            prompt=f"Write solution.py with a function evaluate(text) that returns the value, an int, of an "
            f"expression.\n"
            f"{_words(language)}\nFor example:\n{shown}",
            files={},
            oracle=(written("solution.py", _source(language)),),
            tests=code_test(
                [Call(module="solution", name="evaluate", arguments=(t,), expected=_value(language, t)) for t in texts]
            ),
            trivial={
                **lazy_functions("evaluate", examples),
                "pythons_own": (written("solution.py", "def evaluate(text):\n    return int(eval(text))"),),
            },
        )


def _words(language: _Language) -> str:
    operators = [f"- a {op.sign} b is {_MEANINGS[op.code]} ({op.code} in Python)." for op in language.operators]
    order = " before ".join(f"every {op.sign}" for op in language.operators)
    side = "rightmost" if language.from_right else "leftmost"
    lines = [
        "- Numbers are whole and not negative; values may be negative. Spaces mean nothing.",
        *operators,
        f"- {order[0].upper()}{order[1:]}; among equal operators the {side} is done first.",
    ]
    if language.brackets:
        lines.append(
            f"- What stands between {language.brackets[0]} and {language.brackets[1]} is done first. They may be "
            f"nested."
        )
    return "\n".join(lines)


def _text(rng: random.Random, language: _Language, operators: int, depth: int) -> str:
    parts = [_operand(rng, language, depth)]
    for _ in range(operators):
        parts += [rng.choice(language.operators).sign, _operand(rng, language, depth)]
    return rng.choice([" ", ""]).join(parts)


def _operand(rng: random.Random, language: _Language, depth: int) -> str:
    if language.brackets and depth and rng.random() < 0.3:
        return f"{language.brackets[0]}{_text(rng, language, rng.randint(1, 2), depth - 1)}{language.brackets[1]}"
    return str(rng.randint(0, 20))


def _value(language: _Language, text: str) -> int:
    namespace: dict[str, Callable[[str], int]] = {}
    exec(_source(language), namespace)  # type: ignore[arg-type]  # our own text
    return namespace["evaluate"](text)


def _source(language: _Language) -> str:
    opening, closing = language.brackets or ("", "")
    table = ", ".join(f"{op.sign!r}: lambda a, b: {op.code}" for op in language.operators)
    return f"""OPERATORS = {{{table}}}
OPENING, CLOSING, FROM_RIGHT = {opening!r}, {closing!r}, {language.from_right}


def tokens(text):
    found = []
    for c in text.replace(" ", ""):
        if c.isdigit() and found and found[-1].isdigit():
            found[-1] += c
        else:
            found.append(c)
    return found


def flat(items):
    for sign, do in OPERATORS.items():
        while sign in items:
            at = len(items) - 1 - items[::-1].index(sign) if FROM_RIGHT else items.index(sign)
            items[at - 1 : at + 2] = [do(items[at - 1], items[at + 1])]
    return items[0]


def evaluate(text):
    stack = [[]]
    for token in tokens(text):
        if OPENING and token == OPENING:
            stack.append([])
        elif CLOSING and token == CLOSING:
            value = flat(stack.pop())
            stack[-1].append(value)
        else:
            stack[-1].append(int(token) if token.isdigit() else token)
    return flat(stack[0])
"""
