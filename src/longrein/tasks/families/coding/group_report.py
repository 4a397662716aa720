"""Transform records into a report: filter, group, aggregate, sort."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from longrein.tasks.families.base import Draft
from longrein.tasks.families.code_test import Call, code_test, lazy_functions, written
from longrein.tasks.families.words import FIRST_NAMES, words

Record = dict[str, Any]


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    number: str
    weight: str
    least: int
    """Records whose number is below this do not count."""
    how: str
    nested: bool
    """The number stands in a dict of its own under ``weight`` (level 3)."""
    most_first: bool
    top: int
    """Only so many groups; 0 gives all."""


_HOW = {
    "sum": "the sum of its numbers",
    "max": "its largest number",
    "spread": "its largest minus its smallest number",
    "count": "how many records it has",
    "alternating": "the sum of its numbers in the order of the records, with signs + - + - and so on",
}


class GroupReport:
    """Level 2 keeps the top groups only, level 3 has nested records."""

    name = "group_report"
    levels = (1, 2, 3)
    needs = ("python3",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        """Fields, filter, aggregate and order are the secret."""
        fields = words(rng, 3)
        form = _Report(
            group=fields[0], number=fields[1], weight=fields[2], least=rng.randint(3, 25), how=rng.choice(list(_HOW)),
            nested=level >= 3, most_first=rng.random() < 0.5, top=rng.randint(2, 4) if level >= 2 else 0,
        )  # fmt: skip
        inputs = [[], *(_records(rng, form, rng.randint(1, 18)) for _ in range(14))]
        examples = [
            ((records,), _report(form, records)) for records in (_records(rng, form, 4), _records(rng, form, 6))
        ]
        shown = "\n".join(f"  report({records!r}) == {result!r}" for (records,), result in examples)
        return Draft(
            secret=f"{form}",
            prompt=f"Write solution.py with a function report(records). records is a list of dicts like those below.\n"
            f"{_words(form)}\nFor example:\n{shown}",
            files={},
            oracle=(written("solution.py", _source(form)),),
            tests=code_test(
                [Call(module="solution", name="report", arguments=(r,), expected=_report(form, r)) for r in inputs]
            ),
            trivial=lazy_functions("report", examples),
        )


def _words(form: _Report) -> str:
    where = f"record[{form.weight!r}][{form.number!r}]" if form.nested else f"record[{form.number!r}]"
    order = "largest value first" if form.most_first else "smallest value first"
    lines = [
        f"- Its number is {where}. Records whose number is below {form.least}, or that have none (the key is missing), "
        "do not count.",
        f"- The records that count are grouped by record[{form.group!r}], upper and lower case being the same; a "
        f"group's "
        "name is in lower case.",
        f"- The value of a group is {_HOW[form.how]}.",
        f"- Return a list of [name, value], the {order}, by name where values are equal.",
    ]
    if form.top:
        lines.append(f"- Only the first {form.top} groups of that order are in the list.")
    return "\n".join(lines)


def _records(rng: random.Random, form: _Report, count: int) -> list[Record]:
    names = rng.sample(FIRST_NAMES, 5)

    def record() -> Record:
        number = {form.number: form.least + rng.choice([-2, -1, 0, 1, 4, 9, 9, 15])} if rng.random() < 0.85 else {}
        name = rng.choice(names)
        head = {form.group: name.title() if rng.random() < 0.4 else name}
        return {**head, form.weight: number} if form.nested else {**head, **number, form.weight: rng.randint(1, 9)}

    return [record() for _ in range(count)]


def _report(form: _Report, records: list[Record]) -> list[list[Any]]:
    groups: dict[str, list[int]] = {}
    for record in records:
        number = (record[form.weight] if form.nested else record).get(form.number)
        if number is not None and number >= form.least:
            groups.setdefault(record[form.group].lower(), []).append(number)
    values = {name: _value(form.how, numbers) for name, numbers in groups.items()}
    sign = -1 if form.most_first else 1
    ordered = sorted(values.items(), key=lambda item: (sign * item[1], item[0]))
    return [[name, value] for name, value in (ordered[: form.top] if form.top else ordered)]


def _value(how: str, numbers: list[int]) -> int:
    match how:
        case "sum":
            return sum(numbers)
        case "max":
            return max(numbers)
        case "spread":
            return max(numbers) - min(numbers)
        case "count":
            return len(numbers)
        case _:
            return sum(numbers[::2]) - sum(numbers[1::2])


_CODE = {
    "sum": "sum(numbers)",
    "max": "max(numbers)",
    "spread": "max(numbers) - min(numbers)",
    "count": "len(numbers)",
    "alternating": "sum(numbers[::2]) - sum(numbers[1::2])",
}


def _source(form: _Report) -> str:
    where = f"record[{form.weight!r}]" if form.nested else "record"
    key = f"({'-' * form.most_first}item[1], item[0])"
    return f"""def report(records):
    groups = {{}}
    for record in records:
        number = {where}.get({form.number!r})
        if number is not None and number >= {form.least}:
            groups.setdefault(record[{form.group!r}].lower(), []).append(number)
    values = {{name: {_CODE[form.how]} for name, numbers in groups.items()}}
    ordered = sorted(values.items(), key=lambda item: {key})
    return [[name, value] for name, value in ordered][:{form.top or None}]
"""
