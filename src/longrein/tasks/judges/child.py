"""Runs the code under test: calls come in as JSON, each answer goes out as one line of JSON.

Part of a hidden test; nothing here knows what is expected. It shares the process with the code under test, which may
do to it as it likes: all it can win is the answers that it gives.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

sys.path.insert(0, os.getcwd())  # noqa: PTH109 - text is what the path holds


def call(asked: dict[str, Any]) -> Any:
    """Call a function, or make an object and call its methods in order."""
    module = importlib.import_module(asked["module"])
    # Problems of LeetCode's form have methods of a class Solution.
    named = (
        getattr(module, asked["name"]) if hasattr(module, asked["name"]) else getattr(module.Solution(), asked["name"])
    )
    if "methods" not in asked:
        return outcome(named, asked["arguments"])
    made = named(*asked["arguments"])
    return [outcome(getattr(made, method), arguments) for method, *arguments in asked["methods"]]


def outcome(function: Any, arguments: list[Any]) -> Any:
    """What it returns; the name of what it raises, as ``{"raises": name}``."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - any failure of the code under test is its answer
        return {"raises": type(error).__name__}


def main() -> None:
    """Answer every call."""
    asked = json.loads(sys.stdin.read())
    answers = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    for one in asked:
        try:
            line = json.dumps({"value": call(one)})
        except BaseException as error:  # noqa: BLE001 - what the code under test raises is its answer
            line = json.dumps({"failed": type(error).__name__})
        answers.write(line + "\n")
        answers.flush()
    answers.close()
    os._exit(0)


if __name__ == "__main__":
    main()
