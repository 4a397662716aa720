"""Scores an answer by a function of reasoning-gym, which may evaluate it as Python: run in a sandbox, as text.

Standard input is ``{"paths", "name", "entry", "answer"}``. A line says that the package is there, one the score: what
fails after the first is the answer's fault.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import resource
import sys

_CPU_S = 10
_EVALUATES = re.compile(r"\b(eval|parse_expr|sympify)\(")
_MATHS = {
    *("abs", "Abs", "sqrt", "exp", "log", "ln", "pow", "sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos"),
    *("atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "arcsin", "arccos", "arctan", "erf", "sign"),
}
_CALLED = re.compile(r"(\w+)\s*\(")
_OTHER_CODE = re.compile(r"[\])}'\"]\s*\(|[\w\])}'\"]\s*\.\s*[^\W\d]|\\|__|\blambda\b|:=")


def is_code(answer: str) -> bool:
    """It calls something else than a function of mathematics, or takes an attribute."""
    return bool(_OTHER_CODE.search(answer)) or any(name not in _MATHS for name in _CALLED.findall(answer))


def main() -> None:
    """Print the score."""
    asked = json.loads(sys.stdin.read())
    say = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.path += asked["paths"]
    score_of = importlib.import_module("reasoning_gym").get_score_answer_fn(asked["name"])
    say.write("loaded\n")
    say.flush()
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = round(used.ru_utime + used.ru_stime) + _CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    evaluates = _EVALUATES.search(inspect.getsource(sys.modules[score_of.__module__]))
    forged = evaluates and is_code(asked["answer"] or "")
    say.write(f"{0.0 if forged else float(score_of(asked['answer'], asked['entry']))!r}\n")
    say.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
