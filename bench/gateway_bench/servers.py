"""The servers under test."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from gateway_bench.peers import OPENENV, VERIFIERS, python_of
from gateway_bench.process import ServerProcess

TEMPLATE = Path(__file__).parent / "chat_template.jinja"
OURS = "longrein"
FLOOR = "floor"
IN_PROCESS = "longrein-in-process"
IN_PROCESS_TOKENS = 200
"""Of every completion that its engine gives, whatever is asked."""


class Workshop(msgspec.Struct, frozen=True, kw_only=True):
    """Where things lie that servers need."""

    folder: Path
    """Environments of the peers and the tokenizer."""
    tokenizer: Path
    upstream: str


async def start_ours(shop: Workshop, name: str, *options: str) -> ServerProcess:
    """A gateway of ours, with options of ``hosts/longrein_gateway.py``."""
    files = ("--tokenizer", str(shop.tokenizer), "--template", str(TEMPLATE))
    return await ServerProcess.start(name, "longrein_gateway.py", *files, *options, python=[sys.executable])


async def start_own(shop: Workshop, completion: Path) -> list[ServerProcess]:
    """The floor and Longrein's gateway: engine over HTTP, in the process, and over HTTP with a family's renderer."""
    return [
        await ServerProcess.start(FLOOR, "passthrough.py", shop.upstream, python=[sys.executable]),
        await start_ours(shop, OURS, "--upstream", shop.upstream),
        await start_ours(shop, "longrein-qwen3", "--upstream", shop.upstream, "--renderer", "qwen3"),
        await start_ours(shop, IN_PROCESS, "--completion", str(completion)),
    ]


async def start_peers(shop: Workshop) -> list[ServerProcess]:
    """OpenEnv's and verifiers' servers, the latter with either of its clients."""
    openenv = [str(await asyncio.to_thread(python_of, OPENENV, shop.folder))]
    verifiers = [str(await asyncio.to_thread(python_of, VERIFIERS, shop.folder))]
    script = "verifiers_interception.py"
    where = (shop.upstream, str(shop.tokenizer))
    return [
        await ServerProcess.start("openenv", "openenv_capture.py", shop.upstream, python=openenv),
        await ServerProcess.start("verifiers", script, "train", *where, python=verifiers),
        await ServerProcess.start("verifiers-eval", script, "eval", *where, python=verifiers),
    ]
