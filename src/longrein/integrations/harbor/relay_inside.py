"""The part of the relay that runs inside an environment: standard library only, any Python from 3.8 on.

``serve FOLDER PORT...`` listens on 127.0.0.1 and holds what clients send. ``talk FOLDER WAIT_S JSON`` hands down what
is to be sent to clients, and prints what came from them, waiting up to ``WAIT_S`` seconds for something. Both sides
speak in ``[kind, connection, text]``: ``open`` (the text is the port), ``data`` (base64), ``end``.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import sys
from pathlib import Path
from typing import Dict, List, Tuple  # noqa: UP035 - evaluated by Python 3.8

Event = Tuple[str, int, str]  # noqa: UP006
CHUNK_BYTES = 32768
PRINTED_CHARACTERS = 262144
HELD_CHARACTERS = 1048576


class Server:
    """Connections of clients, and what came of them that nobody has taken yet."""

    def __init__(self) -> None:
        self._clients: Dict[int, asyncio.StreamWriter] = {}  # noqa: UP006
        self._events: List[Event] = []  # noqa: UP006
        self._held = 0
        self._changed = asyncio.Condition()
        self._count = 0

    async def serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection to a port."""
        self._count += 1
        number = self._count
        self._clients[number] = writer
        await self._note("open", number, str(writer.get_extra_info("sockname")[1]))
        try:
            while True:
                data = await reader.read(CHUNK_BYTES)
                if not data:
                    break
                await self._note("data", number, base64.b64encode(data).decode())
        except OSError:
            pass
        await self._note("end", number, "")

    async def serve_talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One ``talk``."""
        asked = json.loads(await reader.readline())
        for kind, number, text in asked["down"]:
            self._hand_down(kind, number, text)
        taken = await self._take(asked["wait_s"]) if asked["wait_s"] else []
        writer.write(json.dumps(taken).encode() + b"\n")
        await writer.drain()
        writer.close()

    def _hand_down(self, kind: str, number: int, text: str) -> None:
        client = self._clients.get(number)
        if client is None:
            return
        if kind == "data":
            client.write(base64.b64decode(text))
        else:
            del self._clients[number]
            client.close()

    async def _note(self, kind: str, number: int, text: str) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._held < HELD_CHARACTERS)
            self._held += len(text)
            self._events.append((kind, number, text))
            self._changed.notify_all()

    async def _take(self, wait_s: float) -> List[Event]:  # noqa: UP006
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(lambda: bool(self._events)), wait_s)
            except asyncio.TimeoutError:  # noqa: UP041 - another one before Python 3.11
                return []
            size = count = 0
            while count < len(self._events) and size < PRINTED_CHARACTERS:
                size += len(self._events[count][2])
                count += 1
            taken, self._events = self._events[:count], self._events[count:]
            self._held -= size
            self._changed.notify_all()
            return taken


async def serve(folder: Path, ports: List[int]) -> None:  # noqa: UP006
    """Listen until killed; a file ``ready`` says that this has begun."""
    server = Server()
    listening = [await asyncio.start_server(server.serve_client, "127.0.0.1", port) for port in ports]
    control = await asyncio.start_unix_server(server.serve_talk, str(folder / "control"), limit=1 << 22)
    (folder / "ready").touch()
    await asyncio.gather(*[one.serve_forever() for one in [*listening, control]])


def talk(folder: Path, wait_s: float, down: str) -> None:
    """Hand down, and print what came up as one line of JSON."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(folder / "control"))
        line.sendall(json.dumps({"wait_s": wait_s, "down": json.loads(down)}).encode() + b"\n")
        with line.makefile() as answers:
            sys.stdout.write(answers.readline())


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(serve(Path(sys.argv[2]), [int(port) for port in sys.argv[3:]]))
    else:
        talk(Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
