"""Holds ``solution.py`` and does with it what lines of JSON ask for. Started by ``run_asserts.py`` after ``wire.py``.

Part of a hidden test; no test is in this process, so the code under test may do to it as it likes.
"""

from __future__ import annotations

import importlib
import json
import operator
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Its text comes before ours.
    from longrein.tasks.judges.wire import packed, unpacked

KEPT: list[Any] = []
DOES: dict[str, Callable[..., Any]] = {"get": getattr, "set": setattr, "item": operator.getitem, "length": len}


def keep(value: Any) -> int:
    """Its number."""
    KEPT.append(value)
    return len(KEPT) - 1


def done(asked: dict[str, Any]) -> Any:
    """What was asked for: ``{"do", "of", "arguments", "named"}``."""
    target = KEPT[asked["of"]]
    arguments = [unpacked(argument, KEPT.__getitem__) for argument in asked["arguments"]]
    if asked["do"] == "call":
        return target(*arguments, **{name: unpacked(value, KEPT.__getitem__) for name, value in asked["named"].items()})
    if asked["do"] == "iterate":
        return list(target)
    return DOES[asked["do"]](target, *arguments)


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
            answer = json.dumps({"value": packed(done(json.loads(line)), keep)})
        except Exception as error:  # noqa: BLE001 - whatever the code under test raises is its answer
            answer = json.dumps({"raises": type(error).__name__})
        say.write(answer + "\n")
        say.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
