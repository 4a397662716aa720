"""The real OpenCode binary in the sandbox, against the gateway, with a scripted model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from longrein.engines.render import ChatRenderer
from longrein.engines.scripted import ScriptedEngine, TurnList
from longrein.gateway import Gateway, GatewaySettings
from longrein.harnesses.opencode import OpenCode
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.sessions.agent import AgentSessionFactory
from longrein.types import Message, Score, Task
from tests import tiny

CONTEXT = 200_000  # bytes are tokens here, and OpenCode's first prompt is long
CONTENT = "long reins\n"
TASK = Task(
    task_id="write",
    prompt='Write "long reins" to the file notes/answer.txt.',
    tests={
        "test.sh": b'#!/bin/sh\nif [ "$(cat notes/answer.txt)" = "long reins" ] && [ "$(ls)" = notes ]; then echo 1; '
        b"else echo 0; fi > /logs/verifier/reward.txt\n"
    },
    agent_timeout_s=300.0,
)


def call(name: str, arguments: dict[str, object]) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "type": "function", "function": function}]}


async def test_opencode_writes_a_file_through_its_tools(tmp_path: Path) -> None:
    harness = OpenCode()
    harness.check()
    tokenizer = tiny.tokenizer()
    renderer = ChatRenderer.of(tokenizer)
    backend = BubblewrapBackend(root=str(tmp_path / "sandboxes"))
    turns: list[Message] = [
        call("write", {"filePath": "/workdir/notes/answer.txt", "content": CONTENT}),
        call("bash", {"command": "cat notes/answer.txt", "description": "look at it"}),
        {"role": "assistant", "content": "Done."},
    ]
    engine = ScriptedEngine(TurnList(renderer, turns), vocab_size=len(tokenizer), context_length=CONTEXT)
    gateway = Gateway(engine, renderer, GatewaySettings(context_length=CONTEXT, max_tokens=4096))
    await gateway.start()
    try:
        endpoint = gateway.open_session("s")
        factory = AgentSessionFactory(harness=harness, backend=backend)
        session = await factory.create(task=TASK, endpoint=endpoint, session_id="s")
        try:
            ended = await session.run()
            record = await gateway.close_session("s")
            score = await session.verify()
        finally:
            await session.close()
    finally:
        await gateway.close()
    assert (ended.exit_code, ended.timed_out) == (0, False), ended.output_tail
    assert score == Score(reward=1.0), (score, ended.output_tail)
    trace = record.trace
    assert [reply.reply.get("content") for reply in trace.calls][-1] == "Done."
    assert len(trace.calls) == 3
    assert len(list(trace.paths())) == 1, [one.branch_reason for one in trace.calls]
    assert trace.delivered_token_fraction == 1.0
    assert (record.failure, record.truncated) == (None, False)
    assert CONTENT.strip() in json.dumps(trace.calls[2].messages), "what bash printed came back as a tool message"
    assert list((tmp_path / "sandboxes").iterdir()) == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
