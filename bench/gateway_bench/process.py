"""A server under test in a process of its own: told what to do by lines of JSON, its CPU time read from outside."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

HOSTS = Path(__file__).parent / "hosts"
LINE_LIMIT = 64 * 1024 * 1024


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where one session's client sends its chat completions."""

    url: str
    key: str = ""


class ServerProcess:
    """Starts ``hosts/<script>`` and talks to it over stdin and stdout."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, url: str) -> None:
        self.name = name
        self.url = url
        self._process = process

    @classmethod
    async def start(cls, name: str, script: str, *args: str, python: Sequence[str]) -> ServerProcess:
        """Start it and wait for its first line, ``{"url": ...}``."""
        process = await asyncio.create_subprocess_exec(
            *python,
            str(HOSTS / script),
            *args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_LIMIT,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "OPENAI_API_KEY": "none"},
        )
        server = cls(name, process, "")
        server.url = (await server._line())["url"]
        return server

    async def ask(self, **order: Any) -> dict[str, Any]:
        """One order, one answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        await self._process.stdin.drain()
        return await self._line()

    async def open(self, count: int) -> list[Endpoint]:
        """Open sessions."""
        answer = await self.ask(do="open", count=count)
        return msgspec.convert(answer["endpoints"], list[Endpoint])

    async def close_sessions(self) -> dict[str, Any]:
        """Close every open session, whatever that means there; returns what was captured."""
        return await self.ask(do="close")

    async def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def cpu_s(self) -> float:
        """CPU seconds of all its threads so far, by the kernel's own clock of that process."""
        return time.clock_gettime(((~self._process.pid) << 3) | 2)

    def rss_bytes(self) -> int:
        """Resident memory now."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def peak_rss_bytes(self) -> int:
        """The most memory that was ever resident."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("unreachable: Linux always says VmHWM")

    async def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the server {self.name!r} ended; its own messages are above")
        answer: dict[str, Any] = msgspec.json.decode(line)
        return answer
