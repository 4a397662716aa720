"""Process: OpenEnv's ``CaptureServer``, in its own environment."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from typing import Any

import channel
from openenv.core.harness.capture import CaptureServer

logging.disable(logging.WARNING)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def main() -> None:
    server = CaptureServer(llm_url=f"{sys.argv[1]}/v1", model="policy", port=free_port(), capture_level="tokens")
    server.start()
    url = f"http://127.0.0.1:{server.port}"
    open_ids: list[str] = []

    async def handle(order: dict[str, Any]) -> dict[str, Any]:
        if order["do"] == "open":
            made = [server.registry.create().session_id for _ in range(order["count"])]
            open_ids.extend(made)
            return {"endpoints": [{"url": f"{url}/v1/chat/completions", "key": key} for key in made]}
        stats: dict[str, Any] = {"turns": 0, "roots": 0, "faults": 0}
        for session_id in open_ids:
            session = server.registry.get(session_id)
            graph = session.graph.stats()
            stats["turns"] += graph["n_turns"]
            stats["roots"] += graph["n_roots"]
            stats["faults"] += session.upstream_errors
            server.registry.delete(session_id)
        open_ids.clear()
        return stats

    await channel.serve(url, handle)
    server.stop()


asyncio.run(main())
