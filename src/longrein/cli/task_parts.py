"""``[tasks]`` of a run file -> where tasks come from, and who judges them."""

from __future__ import annotations

from longrein.config import TasksSection
from longrein.tasks.base import TaskSource
from longrein.tasks.judge import JudgeChoice, judge_of
from longrein.tasks.python_verifier import DEFAULT_TIMEOUT_S
from longrein.tasks.source import TaskChoice, chosen_source
from longrein.tasks.verifier import Verifier

TASK_KEYS = {
    "procedural": "tasks.families",
    "harbor": "tasks.folder",
    "jsonl": "tasks.path",
    "dataset": "tasks.path",
    "mbpp": "tasks.path",
    "deepcoder": "tasks.path",
    "humaneval": "tasks.source",
    "reasoning_gym": "tasks.families",
}
"""Source -> the key that says which of its tasks, and so is named when they cannot be had."""


def source_of(section: TasksSection) -> TaskSource:
    """Where tasks come from. Raises :class:`~longrein.errors.TaskError`, see ``chosen_source``."""
    choice = TaskChoice(
        kind=section.source,
        families=section.families,
        held_out_families=section.held_out_families,
        difficulty=section.difficulty,
        folder=section.folder,
        path=section.path,
        subset=section.subset,
    )
    return chosen_source(choice)


def verifier_of(section: TasksSection) -> Verifier:
    """Who judges."""
    asked = section.verifier
    choice = JudgeChoice(
        source=section.source,
        function=asked.function,
        memory_bytes=asked.memory_mb << 20,
        pids=asked.pids,
        function_timeout_s=asked.timeout_s or DEFAULT_TIMEOUT_S,
    )
    return judge_of(choice)


def named_by(section: TasksSection) -> tuple[str, object]:
    """The key that says which tasks, and its value."""
    key = TASK_KEYS[section.source]
    return key, getattr(section, key.removeprefix("tasks."))
