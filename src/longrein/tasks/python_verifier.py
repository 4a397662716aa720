"""A verifier that is a Python function: it sees what the agent left as data, and runs none of it."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import math
import sys
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, SupportsFloat, cast

import msgspec
from msgspec.structs import replace

from longrein.errors import ConfigError, TaskError
from longrein.sandboxes.base import SandboxBackend, WorkTree
from longrein.sandboxes.own_thread import in_own_thread
from longrein.types import Score, Task

DEFAULT_TIMEOUT_S = 120.0


class PythonVerifier(msgspec.Struct, frozen=True, kw_only=True):
    """Judges by ``function(task, work)``. Satisfies :class:`~longrein.tasks.verifier.Verifier`.

    The function takes a :class:`~longrein.types.Task` and a :class:`~longrein.sandboxes.base.WorkTree` and returns a
    number; a mapping with ``reward`` and other numbers, which become metrics; a :class:`~longrein.types.Score`; or
    ``None``, which is unscorable. It may be ``async``; otherwise it runs in a thread of its own, and one that is over
    its time goes on in the background without being heard.
    """

    function: str
    """``module:function`` or ``file.py:function``."""
    timeout_s: float = DEFAULT_TIMEOUT_S

    def check(self, task: Task) -> None:
        """Raise :class:`~longrein.errors.TaskError` if the function cannot be had."""
        try:
            load_function(self.function)
        except ConfigError as error:
            raise TaskError(str(error)) from error

    async def verify(self, task: Task, work: WorkTree, backend: SandboxBackend) -> Score:
        """The function's verdict; ``None`` with a reason when it raises, hangs or returns something else."""
        judging = asyncio.ensure_future(_called(load_function(self.function), task, work))
        try:
            await asyncio.wait({judging}, timeout=self.timeout_s)
        finally:
            judging.cancel()
        if not judging.done():
            return Score(reward=None, reason=f"{self.function} ran past {self.timeout_s} s")
        if judging.cancelled():
            return Score(
                reward=None, reason=f"{self.function} failed: it was cancelled by something that it waited for"
            )
        error = judging.exception()
        if error is not None:
            return Score(reward=None, reason=f"{self.function} failed: {type(error).__name__}: {error}")
        return _score(self.function, judging.result())


async def _called(function: Callable[..., Any], task: Task, work: WorkTree) -> Any:
    try:
        if inspect.iscoroutinefunction(function):
            return await function(task, work)
        return await in_own_thread(lambda: function(task, work))
    except SystemExit as error:
        # On its way up it would end our event loop, and with it everybody's sessions.
        raise RuntimeError(f"it ended with sys.exit({error.code!r})") from error


def _score(function: str, verdict: object) -> Score:
    if verdict is None or (isinstance(verdict, Score) and verdict.reward is None):
        reason = verdict.reason if verdict else ""
        return replace(verdict or Score(reward=None), reason=reason or f"{function} gave no verdict")
    if isinstance(verdict, Score):
        given: Mapping[object, object] = {**verdict.metrics, "reward": verdict.reward}
    else:
        given = cast("Mapping[object, object]", verdict) if isinstance(verdict, Mapping) else {"reward": verdict}
    numbers = {str(name): _number(value) for name, value in given.items()}
    reward = numbers.pop("reward", math.nan)
    metrics = {name: value for name, value in numbers.items() if math.isfinite(value)}
    findings = verdict.findings if isinstance(verdict, Score) else ()
    if not math.isfinite(reward):
        reason = f"{function} gave {verdict!r:.200}, not a finite number"
        return Score(reward=None, metrics=metrics, reason=reason, findings=findings)
    return Score(reward=reward, metrics=metrics, findings=findings)


def _number(value: object) -> float:
    """As a float, whatever library the number is of; ``nan`` for what is none."""
    if isinstance(value, str | bytes) or not isinstance(value, SupportsFloat):
        return math.nan
    try:
        return float(value)
    except (ArithmeticError, TypeError, ValueError, RuntimeError):  # tensors of several numbers have many ways
        return math.nan


@cache
def load_function(name: str) -> Callable[..., Any]:
    """The function of ``module:function`` or ``file.py:function``.

    Raises:
        ConfigError: there is none.
    """
    where, colon, attribute = name.rpartition(":")
    if not colon or not where:
        raise ConfigError(f"{name!r}: give module:function, or file.py:function")
    try:
        module = _of_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except (Exception, SystemExit) as error:  # somebody's module may do anything as it is imported
        raise ConfigError(f"{name!r}: {where} cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ConfigError(f"{name!r}: {where} has no function {attribute!r}")
    return cast("Callable[..., Any]", function)


def _of_file(path: Path) -> Any:
    # A name of its own: `json.py` must not become json. Dataclasses look their module up, so it is among the others.
    name = f"longrein_judge_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
