"""Write a pair of functions, one the inverse of the other."""

from __future__ import annotations

import random

import msgspec

from longrein.tasks.families.base import Draft
from longrein.tasks.families.code_test import Call, code_test, lazy_functions, written


class _Code(msgspec.Struct, frozen=True, kw_only=True):
    escape: str
    smallest_run: int
    digits: str
    """Of the numbers in the code, the digit for 0 first."""
    shift: int
    reverse_blocks: int
    """Length of the blocks that are reversed at the end; 0 leaves that out."""


class Codec:
    """Run lengths at level 1; with shifted letters at level 2; with reversed blocks at level 3."""

    name = "codec"
    levels = (1, 2, 3)
    needs = ("python3",)

    def draw(self, rng: random.Random, level: int) -> Draft:
        """The code is the secret."""
        code = _Code(
            escape=rng.choice("#$%&*+/=@^"), smallest_run=rng.randint(3, 5),
            digits="".join(rng.sample("0123456789", 10)),
            shift=rng.randint(1, 24) if level >= 2 else 0, reverse_blocks=rng.randint(2, 6) if level >= 3 else 0,
        )  # fmt: skip
        plain = ["", "a", "zzzzzzzzzzzzzzzzzzz", *(_text(rng) for _ in range(12))]
        calls = [
            Call(module="solution", name="encode", arguments=(text,), expected=_encode(code, text)) for text in plain
        ]
        calls += [
            Call(module="solution", name="decode", arguments=(_encode(code, text),), expected=text) for text in plain
        ]
        examples = [((text,), _encode(code, text)) for text in (_text(rng), _text(rng))]
        shown = "\n".join(f"  encode({text!r}) == {result!r}" for (text,), result in examples)
        return Draft(
            secret=f"{code}",
            prompt="Write solution.py with the functions encode(text) and decode(code), where decode(encode(text)) "
            "== text "
            f"for every text of lower-case letters and spaces.\n{_words(code)}\nFor "
            f""
            f"example:\n{shown}",
            files={},
            oracle=(written("solution.py", _source(code)),),
            tests=code_test(calls),
            trivial={
                **lazy_functions("encode", examples),
                "both_return_their_input": (
                    written(
                        "solution.py", "def encode(text):\n    return text\n\n\ndef decode(code):\n    return code"
                    ),
                ),
            },
        )


def _words(code: _Code) -> str:
    lines = ["encode does the following, in this order:"]
    if code.shift:
        lines.append(f"- Every letter moves {code.shift} places on in the alphabet, from z to a. Spaces stay.")
    lines.append(
        f"- Every longest run of at least {code.smallest_run} equal characters becomes {code.escape!r}, its length "
        f"in decimal, "
        f"and the character; shorter ones stay. The digits of lengths are not 0123456789 but, in this order, "
        f"{code.digits}."
    )
    if code.reverse_blocks:
        lines.append(
            f"- The result is cut into blocks of {code.reverse_blocks} characters (the last may be shorter), and "
            f"each block is "
            "reversed in its place."
        )
    return "\n".join(lines)


def _text(rng: random.Random) -> str:
    return "".join(rng.choice("abcxyz ") * rng.choice([1, 1, 1, 2, 3, 4, 5, 6, 12]) for _ in range(rng.randint(4, 9)))


def _encode(code: _Code, text: str) -> str:
    shifted = "".join(c if c == " " else chr((ord(c) - 97 + code.shift) % 26 + 97) for c in text)
    out, at = "", 0
    while at < len(shifted):
        run = len(shifted[at:]) - len(shifted[at:].lstrip(shifted[at]))
        number = "".join(code.digits[int(digit)] for digit in str(run))
        out += f"{code.escape}{number}{shifted[at]}" if run >= code.smallest_run else shifted[at] * run
        at += run
    block = code.reverse_blocks
    return "".join(out[i : i + block][::-1] for i in range(0, len(out), block)) if block else out


def _source(code: _Code) -> str:
    return f"""ESCAPE, SMALLEST, DIGITS = {code.escape!r}, {code.smallest_run}, {code.digits!r}
SHIFT, BLOCK = {code.shift}, {code.reverse_blocks}


def turned(text):
    return "".join(text[i : i + BLOCK][::-1] for i in range(0, len(text), BLOCK)) if BLOCK else text


def moved(text, by):
    return "".join(c if c == " " else chr((ord(c) - 97 + by) % 26 + 97) for c in text)


def encode(text):
    text, out, at = moved(text, SHIFT), "", 0
    while at < len(text):
        run = 1
        while at + run < len(text) and text[at + run] == text[at]:
            run += 1
        number = "".join(DIGITS[int(d)] for d in str(run))
        out += ESCAPE + number + text[at] if run >= SMALLEST else text[at] * run
        at += run
    return turned(out)


def decode(code):
    code, out, at = turned(code), "", 0
    while at < len(code):
        if code[at] != ESCAPE:
            out, at = out + code[at], at + 1
            continue
        at, number = at + 1, ""
        while code[at] in DIGITS:
            number, at = number + str(DIGITS.index(code[at])), at + 1
        out, at = out + code[at] * int(number), at + 1
    return moved(out, -SHIFT)
"""
