"""A verifier that is a Python function: it sees what the agent left as data, and runs none of it."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from longrein.errors import ConfigError, TaskError
from longrein.sandboxes.base import SandboxBackend, WorkTree
from longrein.sandboxes.own_thread import in_own_thread
from longrein.tasks.verdicts import finite_of
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
        judging = asyncio.ensure_future(self._judged(task, work))
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
        return judging.result()

    async def _judged(self, task: Task, work: WorkTree) -> Score:
        # What it returns is looked at where what it raises is caught: both are somebody else's.
        return _score(self.function, await _called(load_function(self.function), task, work))


async def _called(function: Callable[..., Any], task: Task, work: WorkTree) -> Any:
    try:
        if inspect.iscoroutinefunction(function):
            return await function(task, work)
        return await in_own_thread(lambda: function(task, work))
    except SystemExit as error:
        # On its way up it would end our event loop, and with it everybody's sessions.
        raise RuntimeError(f"it ended with sys.exit({error.code!r})") from error


def _score(function: str, verdict: object) -> Score:
    if verdict is None:
        return Score(reward=None, reason=f"{function} gave no verdict")
    score, given = Score(reward=None), {"reward": verdict}
    if isinstance(verdict, Score):
        # Nothing has looked at its fields yet.
        score, given = verdict, {**verdict.metrics, "reward": verdict.reward}
    elif isinstance(verdict, Mapping):
        given = {**cast("Mapping[Any, object]", verdict)}
    metrics = finite_of(given)
    reward = metrics.pop("reward", None)
    if reward is None:
        silent = isinstance(verdict, Score) and verdict.reward is None
        fault = "no verdict" if silent else f"{verdict!r:.200}, not a finite number"
        return replace(score, reward=None, metrics=metrics, reason=score.reason or f"{function} gave {fault}")
    return replace(score, reward=reward, metrics=metrics, reason="")


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
