"""The code under test as seen by a judge: its names, whose work is done in another process.

Part of a hidden test. What comes back is plain values, so that nothing can be equal to everything, look at the frames
of the test or change what the test calls.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from limited import Budget, limit_child
from wire import packed, unpacked

_LONGEST_LINE = 4 << 20


class SilentError(Exception):
    """The code under test ended, hung or flooded us."""


class UnjudgeableError(BaseException):
    """A test asks for what cannot be done across processes. No fault of the code under test, and no test catches it."""


class Remote:
    """A process with the code under test."""

    def __init__(self, program: str, budget: Budget) -> None:
        self._budget = budget
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=limit_child,  # noqa: PLW1509 - a judge has one thread
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._buffer = b""
        self._things: dict[int, Thing] = {}

    def names(self) -> dict[str, Any]:
        """The names of the solution; modules are our own, and so is what tests compare with: ``abs``, ``math``."""
        sent = json.loads(self._line())
        ours = {*vars(builtins), *sys.stdlib_module_names}
        names = {name: unpacked(value, self._thing) for name, value in sent["values"].items() if name not in ours}
        for name, module in sent["modules"].items():
            if module.partition(".")[0] in sys.stdlib_module_names:
                names[name] = importlib.import_module(module)
        return names

    def ask(self, do: str, of: int, *arguments: Any, **named: Any) -> Any:
        """Have something done, and arguments changed where it changes them.

        Raises what the code raised, as far as it is a built-in exception.
        """
        asked = {
            "do": do,
            "of": of,
            "arguments": [packed(argument, _number) for argument in arguments],
            "named": {name: packed(value, _number) for name, value in named.items()},
        }
        self._send(json.dumps(asked).encode() + b"\n")
        answer = json.loads(self._line())
        for place, value in answer.get("arguments", ()):
            become(arguments[int(place)], unpacked(value, self._thing))
        for name, value in answer.get("named", ()):
            become(named[str(name)], unpacked(value, self._thing))
        if "raises" in answer:
            kind = getattr(builtins, str(answer["raises"]), Exception)
            raise kind if isinstance(kind, type) and issubclass(kind, Exception) else Exception
        return unpacked(answer["value"], self._thing)

    def _thing(self, number: int) -> Thing:
        return self._things.setdefault(number, Thing(self, number))

    def _send(self, data: bytes) -> None:
        while data:
            if not select.select([], [self._in], [], self._budget.left_s)[1]:
                raise SilentError
            data = data[os.write(self._in, data) :]

    def _line(self) -> bytes:
        while b"\n" not in self._buffer:
            if len(self._buffer) > _LONGEST_LINE or not select.select([self._out], [], [], self._budget.left_s)[0]:
                raise SilentError
            read = os.read(self._out, 1 << 16)
            if not read:
                raise SilentError
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


_CONTAINERS: tuple[type[Any], ...] = (list, dict, set, tuple)


def become(mine: Any, other: Any) -> None:
    """Make a container equal to another of its kind; containers within it that are still there stay the same ones."""
    kind = _kind_of(mine, other)
    if kind is list:
        mine[:] = [_became(mine[at] if at < len(mine) else None, value) for at, value in enumerate(other)]
    elif kind is dict:
        merged = {key: _became(mine.get(key), value) for key, value in other.items()}
        mine.clear()
        mine.update(merged)
    elif kind is set:
        mine.clear()
        mine.update(other)
    elif kind is tuple:
        for one, value in zip(mine, other, strict=True):
            become(one, value)


def _became(mine: Any, other: Any) -> Any:
    kind = _kind_of(mine, other)
    if kind is None or (kind is tuple and len(mine) != len(other)):
        return other
    become(mine, other)
    # What is in a tuple cannot be put into another place.
    return other if kind is tuple and mine != other else mine


def _kind_of(one: Any, other: Any) -> type[Any] | None:
    """What both are; what was sent as a plain container may be of a type of its own here."""
    return next((kind for kind in _CONTAINERS if isinstance(one, kind) and isinstance(other, kind)), None)


class Thing:
    """Something that is not plain: it stays with the code under test. Equal to itself alone."""

    def __init__(self, remote: Remote, number: int) -> None:
        vars(self).update(_remote=remote, _number=number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call it."""
        return self._remote.ask("call", self._number, *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._remote.ask("get", self._number, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._remote.ask("set", self._number, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._remote.ask("item", self._number, key)

    def __len__(self) -> int:
        return int(self._remote.ask("length", self._number))

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Any:
        return iter(self._remote.ask("iterate", self._number))


def _number(thing: Any) -> int:
    if not isinstance(thing, Thing):
        raise UnjudgeableError(
            f"a test gives the code under test a {type(thing).__name__}, which cannot be sent to its process"
        )
    return int(vars(thing)["_number"])
