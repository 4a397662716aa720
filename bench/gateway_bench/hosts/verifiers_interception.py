"""Process: verifiers' interception server, in its own environment.

With its train client it renders prompts to ids itself and captures tokens, as Longrein does; with its eval client it
passes chat completions on and captures no tokens.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import channel
from renderers.configs import config_from_name
from verifiers.v1.clients.client import ModelContext
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.configs.client import EvalClientConfig, TrainClientConfig
from verifiers.v1.interception.server import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask
from verifiers.v1.types import SamplingConfig

logging.disable(logging.WARNING)


def client_config(kind: str, upstream: str, tokenizer: str) -> EvalClientConfig | TrainClientConfig:
    if kind == "eval":
        return EvalClientConfig(base_url=f"{upstream}/v1", api_key_var="OPENAI_API_KEY")
    return TrainClientConfig(
        base_url=f"{upstream}/v1",
        api_key_var="OPENAI_API_KEY",
        renderer=config_from_name("qwen3"),
        renderer_model_name=tokenizer,
    )


async def main() -> None:
    kind, upstream, tokenizer = sys.argv[1:4]
    config = client_config(kind, upstream, tokenizer)
    server = InterceptionServer()
    await server.start()
    open_sessions: list[tuple[RolloutSession, tuple[str, str]]] = []

    def open_session() -> dict[str, str]:
        context = ModelContext(model="policy", client=config, sampling=SamplingConfig(temperature=1.0, max_tokens=4096))
        task = TraceTask(type="Bench", data=TaskData(prompt="bench"))
        session = RolloutSession(ctx=context, trace=Trace(task=task, agent=AgentInfo(config=AgentConfig())))
        secrets = server.register(session)
        open_sessions.append((session, secrets))
        return {"url": f"{server.base_url}/v1/chat/completions", "key": secrets[0]}

    async def handle(order: dict[str, Any]) -> dict[str, Any]:
        if order["do"] == "open":
            return {"endpoints": [open_session() for _ in range(order["count"])]}
        calls = [call for session, _ in open_sessions for call in session.trace.calls]
        nodes = [node for session, _ in open_sessions for node in session.trace.nodes]
        for _session, secrets in open_sessions:
            server.unregister(*secrets)
        open_sessions.clear()
        return {
            "turns": sum(call.node is not None for call in calls),
            "faults": sum(call.error is not None for call in calls),
            "token_nodes": sum(bool(getattr(node, "token_ids", None)) for node in nodes),
            "errors": [call.error.message for call in calls if call.error][:1],
        }

    await channel.serve(server.base_url, handle)
    await server.stop()


asyncio.run(main())
