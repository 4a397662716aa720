"""Secrets in what people are shown: api keys, tokens and passwords on command lines, in environments and in logs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

HIDDEN = "***"
LEAST_CHARACTERS = 6
"""A shorter value is not looked for in logs: it would be found in words that are no secret."""

_SECRET_WORDS = frozenset(
    {
        "apikey",
        "auth",
        "authorization",
        "bearer",
        "credential",
        "credentials",
        "key",
        "passphrase",
        "passwd",
        "password",
    }
    | {"pat", "secret", "secrets", "token"}
)
_PLURALS = frozenset({"keys", "passwords"})
_ENDS = ("apikey", "password", "secret", "token")
_NO_NAMES = ("Error", "Exception")
"""``KeyError: 'lm_head.weight'`` is to be read."""
_WORDS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_PLACES = (
    re.compile(r"(?P<name>(?i:bearer))\s+(?P<value>[^\s\"',;]+)"),
    # --api-key VALUE inside of a longer text, such as that of sh -c.
    re.compile(r"""(?<![\w-])--?(?P<name>[A-Za-z][\w.-]*)\s+["']?(?P<value>[^\s"'-][^\s"']*)"""),
    # NAME=VALUE, --name=VALUE, "name": "VALUE".
    re.compile(r"""(?P<name>[A-Za-z_][\w.-]*)["']?\s*[:=]\s*["'\[(]*(?P<value>[^\s"',;&|\])}]+)"""),
)
_IN_URL = re.compile(r"(?P<name>://[^/\s:@]*:)(?P<value>[^/\s@]+)(?=@)")


def is_secret(name: str) -> bool:
    """Whether a flag, variable or key of this name holds a secret: ``--api-key``, ``HF_TOKEN``, ``dbPassword``."""
    if name.endswith(_NO_NAMES):
        return False
    words = [word.lower() for word in _WORDS.split(name) if word]
    return any(word in _SECRET_WORDS or word in _PLURALS or word.endswith(_ENDS) for word in words)


def hide(text: str) -> str:
    """A text with the values of what is named like a secret left out."""
    for place in _PLACES:
        text = place.sub(_hidden_value, text)
    return _IN_URL.sub(rf"\g<name>{HIDDEN}", text)


def shown(value: Any, name: str = "") -> Any:
    """A value of a run file or a command line as it may be shown; lists are read as command lines are.

    Args:
        value: anything that TOML has.
        name: its key, if it has one.
    """
    if is_secret(name) and value not in (None, "", (), []):
        return HIDDEN
    if isinstance(value, dict):
        return {key: shown(one, str(key)) for key, one in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        words = cast("Sequence[Any]", value)
        return [HIDDEN if secret else shown(word) for word, secret in zip(words, _follows_flag(words), strict=True)]
    return hide(value) if isinstance(value, str) else value


def shown_command(argv: Sequence[str]) -> str:
    """A command line as it may be shown."""
    return " ".join(map(str, shown(argv)))


class Secrets:
    """The secrets that a process is given, for what it says of itself.

    Args:
        argv: its command line.
        env: its environment.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        after_flags = [word for word, secret in zip(argv, _follows_flag(argv), strict=True) if secret]
        named = [value for name, value in env.items() if is_secret(name)]
        found = {*after_flags, *named, *(value for word in argv for value in _values(word))}
        # The longest first: one may be a part of another.
        self._values = sorted((value for value in found if len(value) >= LEAST_CHARACTERS), key=len, reverse=True)

    def hide(self, text: str) -> str:
        """A text without them."""
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return text


def _follows_flag(argv: Sequence[Any]) -> Iterator[bool]:
    """Of each word, whether it is a value of a flag before it that is named like a secret."""
    secret = False
    for word in argv:
        is_flag = isinstance(word, str) and word.startswith("-")
        if is_flag:
            secret = "=" not in word and is_secret(word)
        yield secret and not is_flag


def _values(text: str) -> Iterator[str]:
    for place in _PLACES:
        yield from (match["value"] for match in place.finditer(text) if is_secret(match["name"]))
    yield from (match["value"] for match in _IN_URL.finditer(text))


def _hidden_value(match: re.Match[str]) -> str:
    if not is_secret(match["name"]):
        return match[0]
    start, end = match.start("value") - match.start(), match.end("value") - match.start()
    return match[0][:start] + HIDDEN + match[0][end:]
