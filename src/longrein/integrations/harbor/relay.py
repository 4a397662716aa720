"""Loopback ports of this machine inside an environment of which nothing is known but that it runs commands.

Bytes travel in the arguments and the output of commands: slow where starting one takes long, but it needs neither a
network nor a tunnel of the provider's, only ``python3`` inside.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import secrets
import shlex
from pathlib import Path
from typing import Any

from longrein.errors import SandboxError
from longrein.integrations.harbor.faults import provider

_LOG = logging.getLogger(__name__)
INSIDE = Path(__file__).with_name("relay_inside.py")
_WAIT_S = 20.0
_COMMAND_TIMEOUT_S = 120
_CHUNK_BYTES = 24_576
"""Handed down at once: as base64, a fraction of the 128 KiB that an argument may have."""


class _InnerPartLostError(SandboxError):
    """Commands still run, but what answers them was killed: by the agent, who is alone with it."""


class ExecRelay:
    """Carries connections through the environment's own ``exec``."""

    async def open(self, environment: Any, ports: tuple[int, ...]) -> OpenRelay:
        """Start the inner part.

        Raises:
            SandboxError: no ``python3`` inside, or a port there is taken.
        """
        folder = f"/tmp/.longrein-relay-{secrets.token_hex(6)}"
        relay = OpenRelay(environment, folder)
        if ports:
            await relay.start(ports)
        return relay


class OpenRelay:
    """The outer part of one environment's relay.

    Args:
        environment: Harbor's, started.
        folder: of the inner part.
    """

    def __init__(self, environment: Any, folder: str) -> None:
        self._environment = environment
        self._folder = folder
        self.fault = ""
        """Of the first part that ended before its time."""
        self._ports: frozenset[str] = frozenset()
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> bool:
        """Whether anything is carried still."""
        return bool(self._tasks)

    async def start(self, ports: tuple[int, ...]) -> None:
        """See :meth:`ExecRelay.open`."""
        folder, numbers = shlex.quote(self._folder), " ".join(map(str, ports))
        self._ports = frozenset(map(str, ports))
        with provider("starting the relay"):
            await self._run(f"mkdir -p {folder}")
            await self._environment.upload_file(INSIDE, f"{self._folder}/relay.py")
            served = f"setsid python3 {folder}/relay.py serve {folder} {numbers} </dev/null >{folder}/log 2>&1 &"
            waited = f"while kill -0 $! 2>/dev/null; do [ -e {folder}/ready ] && exit 0; sleep 0.1; done"
            result = await self._run(f"{served} {waited}; cat {folder}/log; exit 1")
        if result.return_code:
            raise SandboxError(f"the relay to the gateway did not start inside: {(result.stdout or '')[-500:]}")
        self._keep(self._carry())

    async def close(self) -> None:
        """End both parts."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers.values():
            writer.close()

    async def _carry(self) -> None:
        while True:
            for kind, number, value in await self._talk(_WAIT_S, []):
                await self._act(kind, number, value)

    async def _act(self, kind: str, number: int, value: str) -> None:
        if kind == "open":
            try:
                reader, self._writers[number] = await self._connected(value)
            except OSError:
                # What listened here is gone, or not theirs to reach; the client inside sees its connection end.
                await self._talk(0.0, [["end", number, ""]])
                return
            self._keep(self._answer(number, reader))
        elif (writer := self._writers.get(number)) is not None:
            if kind == "data":
                writer.write(base64.b64decode(value))
            elif not writer.is_closing():
                # It may have said all and still wait for the answer.
                writer.write_eof()

    async def _connected(self, port: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if port not in self._ports:
            # The inner part is a file of the environment's: an agent may have put its own there.
            _LOG.warning("the relay to the gateway was asked for port %s, which it does not carry", port)
            raise ConnectionRefusedError(port)
        return await asyncio.open_connection("127.0.0.1", int(port))

    async def _answer(self, number: int, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(_CHUNK_BYTES):
                await self._talk(0.0, [["data", number, base64.b64encode(data).decode()]])
        except ConnectionError:
            pass
        finally:
            self._writers.pop(number).close()
        await self._talk(0.0, [["end", number, ""]])

    async def _talk(self, wait_s: float, down: list[list[Any]]) -> list[tuple[str, int, str]]:
        folder = shlex.quote(self._folder)
        asked = f"python3 {folder}/relay.py talk {folder} {wait_s} {shlex.quote(json.dumps(down))}"
        with provider("the relay to the gateway"):
            result = await self._run(asked)
        try:
            return json.loads(result.stdout or "")
        except ValueError as error:
            raise _InnerPartLostError(f"the relay's inner part is gone: {(result.stderr or '')[-300:]}") from error

    async def _run(self, command: str) -> Any:
        return await self._environment.exec(command, cwd="/", timeout_sec=_COMMAND_TIMEOUT_S)

    def _keep(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The agent finds its model gone. Where that is not its own doing, whoever collects its work is told.
            if not isinstance(error, _InnerPartLostError):
                self.fault = self.fault or f"{type(error).__name__}: {error}"
            _LOG.warning("the relay to the gateway ended: %s", error)
