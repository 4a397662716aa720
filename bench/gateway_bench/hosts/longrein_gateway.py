"""Process: Longrein's gateway with everything on, and the run directory that closed sessions are written to."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import channel

sys.path.insert(0, str(Path(__file__).parents[2]))

from gateway_bench.http_engine import CONTEXT_LENGTH, HttpEngine, InProcessEngine

from longrein.engines.render import ChatRenderer
from longrein.gateway import Gateway, GatewaySettings, SessionRecord
from longrein.gateway.collector import loaded_stays
from longrein.store import RunStore
from longrein.types import Rollout, RolloutGroup, Score, Task

GROUP = 8
TASK = Task(task_id="bench", prompt="bench")


class Host:
    """Opens sessions, closes them, writes their rollouts durably."""

    def __init__(self, gateway: Gateway, store: RunStore) -> None:
        self._gateway = gateway
        self._store = store
        self._open: list[str] = []
        self._count = 0

    async def handle(self, order: dict[str, Any]) -> dict[str, Any]:
        if order["do"] == "open":
            return {"endpoints": [self._open_session() for _ in range(order["count"])]}
        records = [await self._gateway.close_session(session_id) for session_id in self._open]
        self._open.clear()
        for at in range(0, len(records), GROUP):
            self._store.append(_group(records[at : at + GROUP], at // GROUP))
        return _captured(records)

    def _open_session(self) -> dict[str, str]:
        self._count += 1
        session_id = f"s{self._count}"
        self._open.append(session_id)
        endpoint = self._gateway.open_session(session_id)
        return {"url": f"{endpoint.base_url}/v1/chat/completions", "key": endpoint.api_key}


def _captured(records: list[SessionRecord]) -> dict[str, Any]:
    calls = [call for record in records for call in record.trace.calls]
    return {
        "turns": len(calls),
        "roots": sum(call.parent_id is None for call in calls),
        "delivered": sum(call.delivered for call in calls),
        "faults": sum(record.failure is not None for record in records),
        "counters": records[0].counters if records else {},
    }


def _group(records: list[SessionRecord], index: int) -> RolloutGroup:
    rollouts = tuple(
        Rollout(
            rollout_id=f"r{at}",
            group_id=f"g{index}",
            task_id="bench",
            seed=at,
            status="completed",
            trace=record.trace,
            score=Score(reward=1.0),
        )
        for at, record in enumerate(records)
    )
    ones = (1.0,) * len(rollouts)
    return RolloutGroup(group_id=f"g{index}", task=TASK, rollouts=rollouts, rewards=ones, advantages=ones)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--upstream", default="")
    parser.add_argument("--completion", type=Path, help="JSON list of ids that an engine in the process says")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--template", type=Path, required=True)
    parser.add_argument("--renderer", default="template")
    parser.add_argument("--keep-alive-s", type=float, default=10.0)
    args = parser.parse_args()
    if args.renderer == "template":
        renderer = ChatRenderer.load(args.tokenizer, chat_template=args.template.read_text(encoding="utf-8"))
    else:
        renderer = ChatRenderer.load(args.tokenizer, renderer=args.renderer)
    if args.upstream:
        engine: HttpEngine | InProcessEngine = HttpEngine(args.upstream, renderer.vocab_size)
    else:
        import json

        engine = InProcessEngine(json.loads(args.completion.read_text(encoding="ascii")), renderer.vocab_size)
    settings = GatewaySettings(
        context_length=CONTEXT_LENGTH, max_tokens=4096, max_calls=100_000, keep_alive_s=args.keep_alive_s
    )
    gateway = Gateway(engine, renderer, settings)
    await gateway.start()
    with tempfile.TemporaryDirectory() as folder, loaded_stays():
        host = Host(gateway, RunStore(Path(folder)))
        await channel.serve(f"http://127.0.0.1:{gateway.port}", host.handle)
    await gateway.close()
    await engine.close()


asyncio.run(main())
