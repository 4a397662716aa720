"""What a hidden test leaves -> a score: a reward file, its exit code, or a JUnit report."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec

from longrein.sandboxes.base import ExecResult, Sandbox
from longrein.tasks.junit import JUnitError, count_cases
from longrein.types import Score, VerdictName

LOGS = "/logs/verifier"
"""Where a hidden test leaves its verdict."""
_KEPT_OUTPUT = 500
_EXIT_REWARDS = {0: 1.0, 1: 0.0}
Verdict = Callable[[Sandbox, ExecResult], Awaitable[Score]]


async def from_reward_file(sandbox: Sandbox, result: ExecResult) -> Score:
    """The reward file decides, not the exit code: Harbor's tests exit 1 after a failed test."""
    try:
        return _from_text(await sandbox.read(f"{LOGS}/reward.txt"))
    except FileNotFoundError:
        pass
    try:
        return _from_json(await sandbox.read(f"{LOGS}/reward.json"))
    except FileNotFoundError:
        return Score(reward=None, reason=f"the verifier wrote no reward (exit code {result.exit_code}); {said(result)}")


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
    if not isinstance(numbers.get("reward"), int | float):
        return Score(reward=None, reason=f"reward.json has no number 'reward'; it has {sorted(numbers)[:10]}")
    reward = finite(numbers.pop("reward"))
    return _score(math.inf if reward is None else reward, finite_of(numbers))


def finite(value: object) -> float | None:
    """A number as one that can be reckoned with; ``None`` for what is none, or too large, or not finite."""
    if isinstance(value, str | bytes | bytearray):
        return None
    try:
        number = float(cast("float", value))
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def finite_of(numbers: Mapping[Any, object]) -> dict[str, float]:
    """The finite numbers among them, under names that can be written down."""
    found = {str(name).encode(errors="replace").decode(): finite(value) for name, value in numbers.items()}
    return {name: value for name, value in found.items() if value is not None}


def _score(reward: float, metrics: dict[str, float]) -> Score:
    if not math.isfinite(reward):
        return Score(reward=None, metrics=metrics, reason=f"the reward is {reward}, not a finite number")
    return Score(reward=reward, metrics=metrics)


def said(result: ExecResult) -> str:
    """What a command printed last, for a reason."""
    output = (result.stderr or result.stdout).decode(errors="replace").strip()
    return f"it said: {output[-_KEPT_OUTPUT:]}" if output else "it said nothing"


async def from_exit_code(sandbox: Sandbox, result: ExecResult) -> Score:
    """0 passed, 1 failed; whatever else a script ends with, it did not come to a verdict."""
    reward = _EXIT_REWARDS.get(result.exit_code)
    if reward is None:
        return Score(reward=None, reason=f"exit code {result.exit_code} is neither 0 nor 1; {said(result)}")
    return Score(reward=reward)


async def from_junit(sandbox: Sandbox, result: ExecResult) -> Score:
    """``junit.xml``: the fraction of test cases that passed; skipped ones do not count."""
    try:
        cases = count_cases(await sandbox.read(f"{LOGS}/junit.xml"))
    except FileNotFoundError:
        reason = f"the verifier wrote no junit.xml (exit code {result.exit_code}); {said(result)}"
        return Score(reward=None, reason=reason)
    except JUnitError as error:
        return Score(reward=None, reason=f"junit.xml cannot be read: {error}")
    metrics = {"passed": float(cases.passed), "failed": float(cases.failed), "skipped": float(cases.skipped)}
    if not cases.passed + cases.failed:
        return Score(reward=None, metrics=metrics, reason="junit.xml has no test case that ran")
    return Score(reward=cases.passed / (cases.passed + cases.failed), metrics=metrics)


VERDICTS: Mapping[VerdictName, Verdict] = {
    "reward": from_reward_file,
    "exit_code": from_exit_code,
    "junit": from_junit,
}
"""What a task's ``verdict`` says -> how it is read."""
