"""The judge of reasoning-gym's puzzles. Its functions ``eval`` some answers: they run in a sandbox, never here."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import msgspec

from longrein.errors import SandboxError, TaskError
from longrein.sandboxes.base import ExecResult, SandboxBackend, SandboxLimits, SandboxSpec, WorkTree
from longrein.sandboxes.closing import close_or_log
from longrein.tasks.families.shipped import shipped
from longrein.tasks.gym import ANSWER, ENTRY, PACKAGE
from longrein.tasks.verdicts import said
from longrein.types import Mount, Score, Task

_SHOWN = Path("/usr")
"""What every sandbox shows anyway."""


class PuzzleVerifier(msgspec.Struct, frozen=True, kw_only=True):
    """Scores ``answer.txt`` from 0 to 1. Satisfies :class:`~longrein.tasks.verifier.Verifier`.

    The sandbox shows, read-only, the Python that we run in and its packages.
    """

    limits: SandboxLimits = SandboxLimits()
    timeout_s: float

    def check(self, task: Task) -> None:
        """Raise :class:`~longrein.errors.TaskError` for a task that is no puzzle, or without the package."""
        if ENTRY not in task.metadata or "family" not in task.metadata:
            raise TaskError(f"task {task.task_id!r} is no puzzle of {PACKAGE}: its metadata has no {ENTRY!r}")
        _package_folder()

    async def verify(self, task: Task, work: WorkTree, backend: SandboxBackend) -> Score:
        """See :class:`~longrein.tasks.verifier.Verifier`. An answer that ends or hangs its own judge is worth 0."""
        self.check(task)
        answer = work.files.get(ANSWER)
        asked = {
            "paths": [str(_package_folder())],
            "name": task.metadata["family"],
            "entry": json.loads(task.metadata[ENTRY]),
            "answer": answer.data.decode(errors="replace").strip() if answer else None,
        }
        try:
            return score_of(await self._run(json.dumps(asked).encode(), backend))
        except SandboxError as error:
            return Score(reward=None, reason=f"no sandbox for the verifier: {error}")

    async def _run(self, asked: bytes, backend: SandboxBackend) -> ExecResult:
        sandbox = await backend.create(SandboxSpec(readonly_mounts=_python(), limits=self.limits))
        try:
            program = shipped("score_puzzle").decode()
            return await sandbox.exec(
                (sys.executable, "-I", "-B", "-c", program), stdin=asked, timeout_s=self.timeout_s
            )
        finally:
            await close_or_log(sandbox)


def score_of(result: ExecResult) -> Score:
    """What the judge's program said."""
    loaded, *scores = result.stdout.decode(errors="replace").split("\n")
    if loaded != "loaded":
        return Score(reward=None, reason=f"{PACKAGE} could not be started in the sandbox; {said(result)}")
    try:
        reward = float(scores[0])
    except (ValueError, IndexError):
        return Score(reward=0.0)
    return Score(reward=reward if math.isfinite(reward) else 0.0)


def _python() -> tuple[Mount, ...]:
    folders = {Path(sys.base_prefix), Path(sys.prefix), _package_folder()}
    outer = [
        folder
        for folder in sorted(folders)
        if not folder.is_relative_to(_SHOWN) and not any(folder.is_relative_to(other) for other in folders - {folder})
    ]
    return tuple(Mount(source=str(folder), target=str(folder)) for folder in outer)


def _package_folder() -> Path:
    """Where the package lies."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise TaskError("reasoning_gym needs the package: pip install 'longrein[reasoning-gym]'")
    return Path(found.origin).parents[1]
