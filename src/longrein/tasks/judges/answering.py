"""Holds ``solution.py`` and does with it what lines of JSON ask for. Started by ``run_asserts.py`` after ``wire.py``.

Part of a hidden test; no test is in this process, so the code under test may do to it as it likes.
"""

from __future__ import annotations

import importlib
import json
import operator
import os
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Its text comes before ours.
    from longrein.tasks.judges.wire import packed, unpacked

KEPT: list[Any] = []
NUMBERS: dict[int, int] = {}
"""Where a kept thing is in that list, by its ``id``."""
DOES: dict[str, Callable[..., Any]] = {"get": getattr, "set": setattr, "item": operator.getitem, "length": len}


def keep(value: Any) -> int:
    """Its number, always the same."""
    if id(value) not in NUMBERS:
        NUMBERS[id(value)] = len(KEPT)
        KEPT.append(value)
    return NUMBERS[id(value)]


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """What came of what was asked for, ``{"do", "of", "arguments", "named"}``, and what became of its arguments."""
    sent: list[Any] = asked["arguments"]
    arguments = [unpacked(argument, KEPT.__getitem__) for argument in sent]
    named = {name: unpacked(value, KEPT.__getitem__) for name, value in asked["named"].items()}
    try:
        said: dict[str, Any] = {"value": packed(done(asked["do"], KEPT[asked["of"]], arguments, named), keep)}
    except Exception as error:  # noqa: BLE001 - whatever the code under test raises is its answer
        said = {"raises": type(error).__name__}
    # A test may ask whether an argument was changed in place.
    said["arguments"] = changed(enumerate(arguments), dict(enumerate(sent)))
    said["named"] = changed(named.items(), asked["named"])
    return said


def done(what: str, target: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
    """The work itself."""
    if what == "call":
        return target(*arguments, **named)
    if what == "iterate":
        return list(target)
    return DOES[what](target, *arguments)


def changed(values: Iterable[tuple[Any, Any]], before: dict[Any, Any]) -> list[list[Any]]:
    """Those that are no longer as they were sent, with their places."""
    after = [(place, packed(value, keep)) for place, value in values if isinstance(value, (list, dict, set, tuple))]
    return [[place, value] for place, value in after if value != before[place]]


def main() -> None:
    """Send the names of the solution, then answer line for line."""
    read, say = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - text is what the path holds
    names = {name: value for name, value in vars(importlib.import_module("solution")).items() if name[:2] != "__"}
    modules = {name: value.__name__ for name, value in names.items() if isinstance(value, ModuleType)}
    values = {name: packed(value, keep) for name, value in names.items() if name not in modules}
    say.write(json.dumps({"modules": modules, "values": values}) + "\n")
    say.flush()
    for line in read:
        try:
            said = json.dumps(answer(json.loads(line)))
        except Exception as error:  # noqa: BLE001 - depths, endless values: what it made is its answer
            said = json.dumps({"raises": type(error).__name__})
        say.write(said + "\n")
        say.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
