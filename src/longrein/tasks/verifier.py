"""The judge: hidden tests in a second, fresh sandbox, over a copy of what the agent left behind.

Convention of Harbor task directories: ``bash /tests/test.sh`` in the work directory writes
``/logs/verifier/reward.txt`` (one number) or ``/logs/verifier/reward.json`` (an object with ``reward``; its other
numbers become metrics).
"""

from __future__ import annotations

import asyncio
import math
from pathlib import PurePosixPath
from typing import Any

import msgspec

from longrein.errors import SandboxError, TaskError
from longrein.sandboxes.base import ExecResult, Sandbox, SandboxBackend, SandboxLimits, SandboxSpec, WorkTree
from longrein.sandboxes.closing import close_or_log
from longrein.sandboxes.links import without_outside_links
from longrein.types import Score, Task

_TESTS = "/tests"
_LOGS = "/logs/verifier"
_COMMAND = 'exec bash "${SANDBOX_ROOT:-}/tests/test.sh"'
_TRIES = 3
_KEPT_OUTPUT = 500
_NAMED_PATHS = 5


def check_task(task: Task) -> None:
    """Say before a run what would end it in the middle.

    Raises:
        TaskError: the task has no ``tests/test.sh``, or a file of it would lie outside its folder.
    """
    if "test.sh" not in task.tests:
        raise TaskError(f"task {task.task_id!r} has no tests/test.sh; every task needs one to be scored")
    for path in (*task.files, *task.tests):
        parts = PurePosixPath(path).parts
        if not parts or parts[0] == "/" or ".." in parts:
            raise TaskError(f"task {task.task_id!r}: file {path!r} leaves its folder; give a path inside it")


async def verify(task: Task, work: WorkTree, backend: SandboxBackend, limits: SandboxLimits) -> Score:
    """Judge a work directory. Whatever goes wrong makes it unscorable (``reward=None``), never 0.

    Work of which a part was not collected is unscorable, too: judged, it would look as if never made. Symlinks that
    lead outside the work directory are not there for the tests.

    Args:
        task: brings the hidden tests and their time limit.
        work: what the agent left in its work directory.
        backend: makes the sandbox, which has no network.
        limits: bounds on the tests.

    Raises:
        TaskError: see :func:`check_task`.
    """
    check_task(task)
    if work.left_out:
        return Score(reward=None, reason=_left_out(work.left_out))
    reason = ""
    for _ in range(_TRIES):
        try:
            return await _judge(task, work, backend, limits)
        except SandboxError as error:
            reason = f"no sandbox for the verifier after {_TRIES} tries: {error}"
    return Score(reward=None, reason=reason)


async def _judge(task: Task, work: WorkTree, backend: SandboxBackend, limits: SandboxLimits) -> Score:
    sandbox = await backend.create(SandboxSpec(folders=(_TESTS, _LOGS), limits=limits))
    try:
        await sandbox.restore(await asyncio.to_thread(without_outside_links, work, sandbox.workdir))
        for path, data in task.tests.items():
            await sandbox.write(f"{_TESTS}/{path}", data, executable=data.startswith(b"#!"))
        result = await sandbox.exec(("bash", "-c", _COMMAND), timeout_s=task.verifier_timeout_s)
        if result.timed_out:
            return Score(reward=None, reason=f"the verifier ran past {task.verifier_timeout_s} s")
        if result.exit_code < 0:
            return Score(reward=None, reason=f"the verifier was killed by signal {-result.exit_code}; {_said(result)}")
        return await _verdict(sandbox, result)
    finally:
        await close_or_log(sandbox)


def _left_out(paths: tuple[str, ...]) -> str:
    more = f" and {len(paths) - _NAMED_PATHS} more" if len(paths) > _NAMED_PATHS else ""
    return (
        f"work left out: {', '.join(paths[:_NAMED_PATHS])}{more}; over the sandbox's limits on what is collected "
        "(SandboxLimits), unreadable, or named otherwise than in UTF-8"
    )


async def _verdict(sandbox: Sandbox, result: ExecResult) -> Score:
    """The reward file decides, not the exit code: Harbor's tests exit 1 after a failed test."""
    try:
        return _from_text(await sandbox.read(f"{_LOGS}/reward.txt"))
    except FileNotFoundError:
        pass
    try:
        return _from_json(await sandbox.read(f"{_LOGS}/reward.json"))
    except FileNotFoundError:
        return Score(
            reward=None, reason=f"the verifier wrote no reward (exit code {result.exit_code}); {_said(result)}"
        )


def _from_text(data: bytes) -> Score:
    try:
        reward = float(data)
    except ValueError:
        return Score(reward=None, reason=f"reward.txt holds no number: {data[:80]!r}")
    return _score(reward, {})


def _from_json(data: bytes) -> Score:
    try:
        numbers = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return Score(reward=None, reason=f"reward.json cannot be read: {error}")
    metrics = {name: _as_float(value) for name, value in numbers.items() if isinstance(value, int | float)}
    if "reward" not in metrics:
        return Score(reward=None, reason=f"reward.json has no number 'reward'; it has {sorted(numbers)[:10]}")
    reward = metrics.pop("reward")
    return _score(reward, {name: value for name, value in metrics.items() if math.isfinite(value)})


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _score(reward: float, metrics: dict[str, float]) -> Score:
    if not math.isfinite(reward):
        return Score(reward=None, metrics=metrics, reason=f"the reward is {reward}, not a finite number")
    return Score(reward=reward, metrics=metrics)


def _said(result: ExecResult) -> str:
    output = (result.stderr or result.stdout).decode(errors="replace").strip()
    return f"it said: {output[-_KEPT_OUTPUT:]}" if output else "it said nothing"
