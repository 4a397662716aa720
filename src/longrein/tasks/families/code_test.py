"""The hidden test of a family that is judged by running the agent's Python code on hidden inputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from longrein.tasks.families.shipped import shipped, start_script

RUNS_S = 40.0
"""What the runs of a judge may take together; over it they count as wrong. Below the verifier's own time limit."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A function of a module, called once."""

    module: str
    name: str
    arguments: tuple[Any, ...]
    """JSON values."""
    expected: Any
    """A JSON value, or ``{"raises": name of an exception}``."""
    or_expected: tuple[Any, ...] = ()
    """Other values that are right, too."""


class Methods(msgspec.Struct, frozen=True, kw_only=True):
    """An object of a class, whose methods are called in order."""

    module: str
    name: str
    arguments: tuple[Any, ...]
    methods: tuple[tuple[Any, ...], ...]
    """Name and arguments of each."""
    expected: Any
    """What each gives, as a list; see :class:`Call`."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A script that is run."""

    script: str
    argv: tuple[str, ...] = ()
    stdin: str = ""
    expected: str
    """What it prints, ends of lines aside."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a source file must look like, read without running it."""

    path: str
    defines: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    """Names that it must not define."""
    imports: tuple[str, ...] = ()
    """Modules that it must import."""


def code_test(
    calls: Sequence[Call | Methods] = (),
    programs: Sequence[Program] = (),
    shapes: Sequence[Shape] = (),
    budget_s: float = RUNS_S,
) -> dict[str, bytes]:
    """Full marks if every case is right; runs that are over ``budget_s`` seconds together are wrong."""
    cases = {"calls": calls, "programs": programs, "shapes": shapes, "seconds": budget_s}
    return {
        "test.sh": start_script("run_code.py"),
        "run_code.py": shipped("run_code"),
        "child.py": shipped("child"),
        "limited.py": shipped("limited"),
        "no_signals.py": shipped("no_signals"),
        "verdict.py": shipped("verdict"),
        "cases.json": json.dumps(msgspec.to_builtins(cases)).encode(),
    }


def assert_test(setup: str, tests: Sequence[str]) -> dict[str, bytes]:
    """Full marks if every test, a piece of Python with assertions, ends without an exception.

    Tests have the names of ``solution.py``, then those of ``setup``. The code itself runs in another process, from
    which only plain values come back: what is returned is a copy. Lists, dicts and sets that a call changes in place
    are changed for the test, too, but a value that is returned is never the same object as an argument. Objects of
    the solution's own stay with it, and are equal to themselves alone. A test that gives the code what cannot be sent
    (a function or an object of the test's own) makes a rollout unscorable, and says so.
    """
    return {
        "test.sh": start_script("run_asserts.py"),
        "run_asserts.py": shipped("run_asserts"),
        "remote.py": shipped("remote"),
        "answering.py": shipped("answering"),
        "wire.py": shipped("wire"),
        "verdict.py": shipped("verdict"),
        "limited.py": shipped("limited"),
        "no_signals.py": shipped("no_signals"),
        "asserts.json": json.dumps({"setup": setup, "tests": list(tests), "seconds": RUNS_S}).encode(),
    }


def written(path: str, source: str) -> str:
    """A shell command that writes a file."""
    folder, _, _name = path.rpartition("/")
    make = f"mkdir -p {folder} && " if folder else ""
    return f"{make}cat > {path} <<'END_OF_FILE'\n{source.rstrip()}\nEND_OF_FILE"


def lazy_functions(name: str, examples: Sequence[tuple[Sequence[Any], Any]]) -> dict[str, tuple[str, ...]]:
    """Answers of somebody who does not do the work, for a function of ``solution.py`` with visible examples."""
    table = {repr(tuple(arguments)): result for arguments, result in examples}
    bodies = {
        "returns_nothing": "    return None",
        "returns_its_input": "    return arguments[0] if arguments else None",
        "returns_the_first_example": f"    return {examples[0][1]!r}",
        "knows_the_examples": f"    return {table!r}.get(repr(arguments))",
    }
    answers = {answer: (written("solution.py", f"def {name}(*arguments):\n{body}"),) for answer, body in bodies.items()}
    return {"empty_file": (": > solution.py",), **answers}
