"""Judges Python code of the work directory by running it on hidden inputs: full marks if every case is right.

Part of a hidden test. ``cases.json`` beside it holds the inputs with what they must give; the code under test never
sees what is expected: its file is gone, and our memory closed, before a child process is started that runs the code.
Code that hangs, ends its process or floods us has failed; that is the answer's fault and scores 0.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from limited import Budget, run_limited
from verdict import keep_to_ourselves, write_verdict

HERE = Path(__file__).resolve().parent
_SOURCE_BYTES = 4 << 20


def main() -> None:
    """Judge the current directory."""
    plan = json.loads((HERE / "cases.json").read_text())
    child = (HERE / "child.py").read_text()
    (HERE / "cases.json").unlink()
    keep_to_ourselves()
    results = [shape_holds(shape) for shape in plan["shapes"]]
    budget = Budget(plan["seconds"])
    results += run_calls(child, plan["calls"], budget)
    results += [run_program(program, budget) for program in plan["programs"]]
    write_verdict(float(all(results)), sum(results), len(results))


def run_calls(child: str, calls: list[dict[str, Any]], budget: Budget) -> list[bool]:
    """All calls in one process, each right or wrong."""
    if not calls:
        return []
    asked = [{key: value for key, value in call.items() if key not in ("expected", "or_expected")} for call in calls]
    answered = run_limited([sys.executable, "-I", "-S", "-B", "-c", child], json.dumps(asked).encode(), budget)
    said = (answered or b"").split(b"\n")
    given = [_parsed(line) for line in said[: len(calls)]] + [None] * len(calls)
    return [right(answer, call) for answer, call in zip(given, calls, strict=False)]


def run_program(program: dict[str, Any], budget: Budget) -> bool:
    """A program with arguments and standard input; what it prints must be as expected, ends of lines aside."""
    said = run_limited(
        [sys.executable, "-E", "-s", "-S", "-B", program["script"], *program["argv"]], program["stdin"].encode(), budget
    )
    return said is not None and _lines(said.decode(errors="replace")) == _lines(program["expected"])


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def right(answer: Any, call: dict[str, Any]) -> bool:
    """It is what is expected, or another value that is right."""
    return any(same(answer, {"value": value}) for value in (call["expected"], *call.get("or_expected", ())))


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1, 1.0 and true are three things, and a tuple is a list."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def shape_holds(shape: dict[str, Any]) -> bool:
    """What a file must define, must not define, and must import, read without running it."""
    try:
        tree = ast.parse(Path(shape["path"]).read_bytes()[:_SOURCE_BYTES])
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    defined = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    imported = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return defined >= set(shape["defines"]) and not defined & set(shape["lacks"]) and imported >= set(shape["imports"])


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    main()
