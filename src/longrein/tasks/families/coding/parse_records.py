"""Write a parser of a made-up text format."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from longrein.tasks.families.base import Draft
from longrein.tasks.families.code_test import Call, code_test, lazy_functions, written
from longrein.tasks.families.words import words

Record = dict[str, Any]


class _Format(msgspec.Struct, frozen=True, kw_only=True):
    between_records: str
    between_fields: str
    assign: str
    comment: str
    numbers: tuple[str, ...]
    """Fields whose values are whole numbers."""
    flags: tuple[str, ...]
    """Fields whose values are yes or no."""
    texts: tuple[str, ...]
    quoted: bool
    """Text values stand between double quotes and may hold separators; a doubled quote is a quote."""


class ParseRecords:
    """Level 2 adds flags and comments, level 3 quoted values that hold separators."""

    name = "parse_records"
    levels = (1, 2, 3)
    needs = ("python3",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        """The format is the secret."""
        form = _form(rng, level)
        inputs = ["", *(_text(form, _records(rng, form, rng.randint(1, 6)), rng) for _ in range(14))]
        examples = [
            ((text,), _parse(form, text)) for text in (_text(form, _records(rng, form, n), rng) for n in (1, 2))
        ]
        shown = "\n".join(f"  parse({text!r}) == {result!r}" for (text,), result in examples)
        return Draft(
            secret=repr(form),
            prompt=f"Write solution.py with a function parse(text) that reads records and returns them as a list of "
            f"dicts, in order.\n{_words(form)}\nFor example:\n{shown}",
            files={},
            oracle=(written("solution.py", _source(form)),),
            tests=code_test(
                [
                    Call(module="solution", name="parse", arguments=(text,), expected=_parse(form, text))
                    for text in inputs
                ]
            ),
            trivial=lazy_functions("parse", examples),
        )


def _form(rng: random.Random, level: int) -> _Format:
    separators = rng.sample("|;,~^&", 2)
    fields = words(rng, 2 + level)
    flags = fields[2:3] if level >= 2 else []
    return _Format(
        between_records=rng.choice(["\n", separators[0]]),
        between_fields=separators[1],
        assign=rng.choice(["=", ":", "->", ":="]),
        comment=rng.choice("#!%@") if level >= 2 else "",
        numbers=(fields[0],),
        flags=tuple(flags),
        texts=(fields[1], *fields[3:]),
        quoted=level >= 3,
    )


def _words(form: _Format) -> str:
    records = "a line break" if form.between_records == "\n" else repr(form.between_records)
    lines = [
        f"- {records} stands between records, {form.between_fields!r} between the fields of a record.",
        f"- A field is a name, {form.assign!r}, and a value. White space around names and values does not count.",
        f"- The value of {', '.join(map(repr, form.numbers))} is a whole number (an int), perhaps negative; all other "
        "values are strings unless said otherwise.",
        "- A record of nothing but white space is skipped. A field that is missing is missing from the dict; when a "
        "name comes twice in a record, the later value counts.",
    ]
    if form.flags:
        lines.append(f"- The value of {form.flags[0]!r} is yes or no: True or False.")
    if form.comment:
        lines.append(
            f"- A record whose first character other than white space is {form.comment!r} is a comment and skipped."
        )
    if form.quoted:
        lines.append(
            "- A value may stand between double quotes. Between them, separators and white space belong to the "
            'value, and "" is one double quote.'
        )
    return "\n".join(lines)


def _records(rng: random.Random, form: _Format, count: int) -> list[Record]:
    def record() -> Record:
        made: Record = {name: rng.randint(-99, 999) for name in form.numbers}
        made |= {name: rng.random() < 0.5 for name in form.flags}
        made |= {name: _value(rng, form) for name in form.texts}
        names = rng.sample(list(made), rng.randint(max(1, len(made) - 1), len(made)))
        return {name: made[name] for name in names}

    return [record() for _ in range(count)]


def _value(rng: random.Random, form: _Format) -> str:
    plain = " ".join(words(rng, rng.randint(1, 2)))
    if not form.quoted or rng.random() < 0.4:
        return plain
    odd = rng.choice([form.between_fields, form.between_records, form.assign, '"', " "])
    return f"{odd}{plain}{odd}"


def _text(form: _Format, records: list[Record], rng: random.Random) -> str:
    def shown(value: Any) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        text = str(value)
        special = (form.between_fields, form.between_records, form.assign, '"')
        quote = any(mark in text for mark in special) or text != text.strip()
        return '"' + text.replace('"', '""') + '"' if quote else text

    lines: list[str] = []
    for record in records:
        pad = rng.choice(["", " "])
        fields = [f"{pad}{name}{pad}{form.assign}{pad}{shown(value)}" for name, value in record.items()]
        lines.append(form.between_fields.join(fields))
        if rng.random() < 0.3:
            lines.append(f" {form.comment} note {rng.randint(1, 9)}" if form.comment else "  ")
    return form.between_records.join(lines)


def _split(text: str, mark: str) -> list[str]:
    """Split where ``mark`` is outside double quotes."""
    parts: list[str] = []
    inside, start, at = False, 0, 0
    while at < len(text):
        if text[at] == '"':
            inside = not inside
        if not inside and text.startswith(mark, at):
            parts.append(text[start:at])
            at = start = at + len(mark)
            continue
        at += 1
    return [*parts, text[start:]]


def _parse(form: _Format, text: str) -> list[Record]:
    found: list[Record] = []
    for part in _split(text, form.between_records):
        if not part.strip() or (form.comment and part.strip().startswith(form.comment)):
            continue
        record: Record = {}
        for field in _split(part, form.between_fields):
            name, _, value = (piece.strip() for piece in field.partition(form.assign))
            value = value[1:-1].replace('""', '"') if value.startswith('"') else value
            record[name] = int(value) if name in form.numbers else value == "yes" if name in form.flags else value
        found.append(record)
    return found


def _source(form: _Format) -> str:
    return f"""def split(text, mark):
    parts, inside, start, at = [], False, 0, 0
    while at < len(text):
        if text[at] == '"':
            inside = not inside
        if not inside and text.startswith(mark, at):
            parts.append(text[start:at])
            at = start = at + len(mark)
        else:
            at += 1
    return parts + [text[start:]]


def parse(text):
    found = []
    for part in split(text, {form.between_records!r}):
        if not part.strip() or ({form.comment!r} and part.strip().startswith({form.comment!r})):
            continue
        record = {{}}
        for field in split(part, {form.between_fields!r}):
            name, _, value = field.partition({form.assign!r})
            name, value = name.strip(), value.strip()
            if value.startswith('"'):
                value = value[1:-1].replace('""', '"')
            if name in {form.numbers!r}:
                value = int(value)
            elif name in {form.flags!r}:
                value = value == "yes"
            record[name] = value
        found.append(record)
    return found
"""
