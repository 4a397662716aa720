"""What sandboxes have in common whose private folders lie on this machine: their files, and the order of their end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from longrein.errors import SandboxError
from longrein.sandboxes.base import BackgroundProcess, ExecResult, SandboxLimits, WorkFile, WorkTree
from longrein.sandboxes.layout import Layout

ProcessT = TypeVar("ProcessT", bound=BackgroundProcess)


class FolderSandbox(ABC, Generic[ProcessT]):
    """A :class:`~longrein.sandboxes.base.Sandbox` but for how commands start, and what else is to be removed.

    Args:
        layout: its folders.
        home: the private home, as seen inside.
        limits: on what is read and collected.
    """

    def __init__(self, layout: Layout, home: str, limits: SandboxLimits) -> None:
        self._layout = layout
        self._home = home
        self._limits = limits
        self._running: set[ProcessT] = set()
        self._closing: asyncio.Task[None] | None = None

    @property
    def workdir(self) -> str:
        """The folder the agent works in, as seen inside."""
        return self._layout.workdir

    @property
    def home(self) -> str:
        """The private home, as seen inside."""
        return self._home

    @abstractmethod
    async def start(self, argv: tuple[str, ...], *, env: dict[str, str] | None = None, stdin: bytes = b"") -> ProcessT:
        """See :meth:`longrein.sandboxes.base.Sandbox.start`. What it starts is in ``_running``."""

    @abstractmethod
    async def _remove(self) -> None:
        """Remove everything; no command runs any more, as far as it could be killed."""

    async def exec(
        self, argv: tuple[str, ...], *, env: dict[str, str] | None = None, stdin: bytes = b"", timeout_s: float
    ) -> ExecResult:
        """See :meth:`longrein.sandboxes.base.Sandbox.exec`."""
        process = await self.start(argv, env=env, stdin=stdin)
        try:
            return await process.wait(timeout_s)
        finally:
            self._running.discard(process)

    async def read(self, path: str) -> bytes:
        """See :meth:`longrein.sandboxes.base.Sandbox.read`."""
        self._require_open()
        place = self._layout.locate(self._placed(path))
        return place.tree.read(place.path, self._limits.collect_bytes)

    async def write(self, path: str, data: bytes, *, executable: bool = False) -> None:
        """See :meth:`longrein.sandboxes.base.Sandbox.write`."""
        self._require_open()
        place = self._layout.locate(self._placed(path))
        place.tree.write(place.path, WorkFile(data=data, executable=executable))

    async def collect(self) -> WorkTree:
        """See :meth:`longrein.sandboxes.base.Sandbox.collect`."""
        self._require_open()
        return await asyncio.to_thread(self._layout.work.collect, self._limits)

    async def restore(self, tree: WorkTree) -> None:
        """See :meth:`longrein.sandboxes.base.Sandbox.restore`."""
        self._require_open()
        await asyncio.to_thread(self._layout.work.restore, tree)

    async def close(self) -> None:
        """Kill everything and remove everything. Safe to call twice, and not undone by cancellation."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._kill_all()
        finally:
            self._running.clear()
            await self._remove()

    async def _kill_all(self) -> None:
        """Kill every command, also where one of them resists; its error is raised then."""
        ended = await asyncio.gather(*[process.kill() for process in self._running], return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error

    def _placed(self, path: str) -> str:
        """The path inside of what a caller means by ``path``."""
        return path

    def _require_open(self) -> None:
        if self._closing is not None:
            raise SandboxError("the sandbox is closed; make a new one")
