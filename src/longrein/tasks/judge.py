"""Who judges: what a run file's ``[tasks.verifier]`` becomes."""

from __future__ import annotations

import msgspec

from longrein.sandboxes.base import SandboxLimits
from longrein.tasks.puzzle_verifier import PuzzleVerifier
from longrein.tasks.python_verifier import DEFAULT_TIMEOUT_S, PythonVerifier
from longrein.tasks.source import SourceKind
from longrein.tasks.verifier import SandboxedTests, Verifier


class JudgeChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What the keys of ``[tasks.verifier]`` say, see ``docs/run-file.md``."""

    source: SourceKind
    function: str = ""
    """Empty: the source's own judge."""
    memory_bytes: int
    pids: int
    function_timeout_s: float = DEFAULT_TIMEOUT_S


def judge_of(choice: JudgeChoice) -> Verifier:
    """A function in Python where the run file names one, else the source's own judge: mostly hidden tests."""
    if choice.function:
        return PythonVerifier(function=choice.function, timeout_s=choice.function_timeout_s)
    limits = SandboxLimits(memory_bytes=choice.memory_bytes, pids=choice.pids)
    if choice.source == "reasoning_gym":
        return PuzzleVerifier(limits=limits, timeout_s=choice.function_timeout_s)
    return SandboxedTests(limits=limits)
