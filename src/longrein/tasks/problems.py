"""Published sets of programming problems as tasks: the agent writes ``solution.py``, hidden tests run it.

Columns: MBPP (Austin et al., arXiv 2108.07732), data set ``google-research-datasets/mbpp``: ``task_id``, ``text`` (in
``sanitized``: ``prompt``), ``code``, ``test_list``, ``test_setup_code`` (``test_imports``), ``challenge_test_list``.
DeepCoder: ``agentica-org/DeepCoder-Preview-Dataset`` with ``problem``, ``tests`` (JSON), ``starter_code``,
``metadata``; its tests come in three shapes, see :func:`deepcoder_task`. HumanEval (Chen et al., arXiv 2107.03374):
``task_id``, ``prompt``, ``entry_point``, ``canonical_solution``, ``test``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from longrein.errors import TaskError
from longrein.tasks.families.code_test import Call, Program, assert_test, code_test, written
from longrein.tasks.hub import Row
from longrein.types import Task

_MOST_TESTS = 15
"""Of DeepCoder's tests, those with the longest inputs, as its authors' reward does."""
_DEEPCODER_TIMEOUT_S = 300.0
_DEEPCODER_RUNS_S = 240.0


def mbpp_task(where: str, name: str, row: Row) -> Task:
    """The first assertion is shown, since it tells the function's name; all of them, and the challenges, are hidden.

    Args:
        where: begins every message.
        name: for a row without ``task_id``.
        row: a row of the data set.

    Raises:
        TaskError: a column is missing, or an assertion is empty.
    """
    text, tests = row.get("text") or row.get("prompt"), _strings(row.get("test_list"))
    if not isinstance(text, str) or not tests:
        raise TaskError(f"{where}: an MBPP row needs 'text' (or 'prompt') and 'test_list'; it has {sorted(row)}")
    if any(not isinstance(test, str) or not test.strip() for test in cast("Sequence[object]", row["test_list"])):
        raise TaskError(f"{where}: 'test_list' has an empty assertion, which anything passes; leave it out")
    setup = [str(row.get("test_setup_code") or ""), *_strings(row.get("test_imports"))]
    hidden = [*tests, *_strings(row.get("challenge_test_list"))]
    code = row.get("code")
    return Task(
        task_id=f"mbpp-{_own_id(row, name)}",
        prompt=f"{text.strip()}\nWrite it to solution.py. For example, this must hold:\n{tests[0]}",
        tests=assert_test("\n".join(setup), hidden),
        oracle=(written("solution.py", code),) if isinstance(code, str) else (),
        metadata={"family": "mbpp"},
    )


def humaneval_task(row: Row) -> Task:
    """``solution.py`` begins as the prompt; the agent completes it."""
    prompt, name = str(row["prompt"]), str(row["entry_point"])
    return Task(
        task_id=str(row["task_id"]).replace("/", "-"),
        prompt=f"Complete the function {name} in solution.py so that it does what its docstring says.",
        files={"solution.py": prompt.encode()},
        tests=assert_test("", [f"{row['test']}\ncheck({name})"]),
        oracle=(written("solution.py", prompt + str(row["canonical_solution"])),),
        metadata={"family": "humaneval", "entry_point": name},
    )


def deepcoder_task(where: str, name: str, row: Row) -> Task:
    """Programs that read and print, or functions that are called.

    ``tests`` is a list of ``{input, output, type | testtype, fn_name}`` or a dict of ``inputs``, ``outputs`` and
    perhaps ``fn_name``; a function's name may also stand in ``metadata.func_name``, and it may be a method of a class
    ``Solution``.

    Args:
        where: begins every message.
        name: for a row without ``task_id``.
        row: a row of the data set.

    Raises:
        TaskError: no problem, or tests of another shape.
    """
    problem, raw = row.get("problem"), row.get("tests")
    if not isinstance(problem, str) or not raw:
        raise TaskError(f"{where}: a DeepCoder row needs 'problem' and 'tests'; it has {sorted(row)}")
    function, pairs = _deepcoder_tests(where, raw, row.get("metadata"))
    pairs = sorted(pairs, key=lambda pair: len(str(pair[0])), reverse=True)[:_MOST_TESTS]
    starter = str(row.get("starter_code") or "")
    solutions = _strings(row.get("solutions"))
    called = f"with a function {function}, or a class Solution with a method {function}"
    how = called if function else "as a program that reads standard input"
    code_tests = (
        code_test([_called(function, *pair) for pair in pairs], budget_s=_DEEPCODER_RUNS_S)
        if function
        else code_test(
            programs=[Program(script="solution.py", stdin=_joined(i), expected=_joined(o)) for i, o in pairs]
        )
    )
    return Task(
        task_id=f"deepcoder-{_own_id(row, name)}",
        prompt=f"{problem.strip()}\n\nWrite solution.py {how}." + (f" Begin with:\n{starter}" if starter else ""),
        tests=code_tests,
        oracle=(written("solution.py", _unfenced(solutions[0])),) if solutions else (),
        verifier_timeout_s=_DEEPCODER_TIMEOUT_S,
        metadata={"family": "deepcoder"},
    )


def _deepcoder_tests(where: str, raw: object, metadata: object) -> tuple[str, list[tuple[Any, Any]]]:
    """The function's name, empty for a program, and pairs of input and output."""
    tests, more = _json(where, raw), _json(where, metadata or {})
    name, pairs = _shaped(where, tests, more)
    # Arguments are a list, or text with one a line; what a program reads is text, or lines of it.
    fit = (str, list) if name else (str, list, int, float)
    unfit = [given for given, _ in pairs if not isinstance(given, fit)]
    if unfit or not pairs:
        what = f"an input of type {type(unfit[0]).__name__}" if unfit else "no case"
        raise TaskError(f"{where}: 'tests' has no shape of DeepCoder's: it has {what}")
    return name, pairs


def _shaped(where: str, tests: object, more: object) -> tuple[str, list[tuple[Any, Any]]]:
    named = str(cast("Mapping[str, Any]", more).get("func_name") or "") if isinstance(more, Mapping) else ""
    try:
        if isinstance(tests, Mapping):
            found = cast("Mapping[str, Any]", tests)
            inputs, outputs = found["inputs"], found["outputs"]
            if not (isinstance(inputs, list) and isinstance(outputs, list)):
                raise TypeError("'inputs' and 'outputs' are no lists")
            pairs = zip(cast("list[Any]", inputs), cast("list[Any]", outputs), strict=True)
            return str(found.get("fn_name") or ""), list(pairs)
        listed = cast("Sequence[Mapping[str, Any]]", tests)
        kind = listed[0].get("testtype") or listed[0].get("type")
        own = listed[0].get("fn_name") or cast("Mapping[str, Any]", listed[0].get("metadata") or {}).get("func_name")
        name = str(own or named) if kind in ("functional", "function_call") else ""
        return name, [(test["input"], test["output"]) for test in listed]
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise TaskError(f"{where}: 'tests' has no shape of DeepCoder's: {type(error).__name__}: {error}") from error


def _called(name: str, given: Any, output: Any) -> Call:
    """Arguments are a list, or text with a JSON value a line (LiveCodeBench); a result may stand in a list of one."""
    arguments: list[Any] = _literal_lines(given) if isinstance(given, str) else list(given)
    expected = _literal(output) if isinstance(output, str) and isinstance(given, str) else output
    values = cast("list[Any]", expected) if isinstance(expected, list) else []
    return Call(
        module="solution",
        name=name,
        arguments=tuple(arguments),
        expected=expected,
        or_expected=tuple(values) if len(values) == 1 else (),
    )


def _literal_lines(text: str) -> list[Any]:
    return [_literal(line) for line in text.split("\n") if line.strip()]


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _json(where: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where}: bad JSON: {error}") from error


def _joined(value: Any) -> str:
    return "\n".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else str(value)


def _unfenced(code: str) -> str:
    """Solutions stand between three backticks."""
    lines = code.strip().split("\n")
    return "\n".join(lines[1:-1]) if lines[0].startswith("```") and lines[-1].startswith("```") else code


def _own_id(row: Row, name: str) -> str:
    """Data sets say ``None`` where only some rows have an id."""
    own = row.get("task_id")
    return name if own is None else str(own)


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [str(item) for item in cast("Sequence[object]", value)] if isinstance(value, Sequence) else []
