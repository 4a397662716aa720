"""An agent in-process whose model says what the test tells it, and what it asks with."""

from __future__ import annotations

import json

from longrein.engines.scripted import ScriptedEngine, TurnList
from longrein.gateway import ChatRequest, GatewaySettings
from longrein.gateway.dialect import Caller
from longrein.gateway.session import GatewaySession, take
from longrein.types import Message, Tool
from tests.gateway.rig import BASH, renderer, run_bash

SYSTEM: Message = {"role": "system", "content": "be good"}
TASK_TOOL: Tool = {**BASH, "function": {**BASH["function"], "name": "task"}}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def result(reply: Message, text: str = "out") -> Message:
    return {"role": "tool", "content": text, "tool_call_id": reply["tool_calls"][0]["id"]}


def call_tool(name: str, **arguments: str) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "type": "function", "function": function}]}


class Agent:
    """Asks, and hears what it was told to hear."""

    def __init__(self) -> None:
        chat = renderer()
        self.engine = ScriptedEngine(TurnList(chat), vocab_size=chat.vocab_size, context_length=8192)
        self.session = GatewaySession("s", self.engine, chat, GatewaySettings())

    async def ask(
        self,
        messages: list[Message],
        says: Message,
        tools: tuple[Tool, ...] = (BASH, TASK_TOOL),
        caller: Caller | None = None,
    ) -> Message:
        self.engine.tell("s", [says])
        request = ChatRequest(messages=tuple(messages), tools=tools, caller=caller or Caller())
        return (await take(self.session, request)).message

    async def work(self, *opening: Message) -> list[Message]:
        """One turn with a tool; returns the history with its result."""
        reply = await self.ask(list(opening), run_bash("ls"))
        return [*opening, reply, result(reply)]

    @property
    def roles(self) -> list[str]:
        calls = self.session.trace().calls
        assert all(call.role_evidence for call in calls)
        return [call.role for call in calls]

    @property
    def reasons(self) -> list[str]:
        return [call.branch_reason for call in self.session.trace().calls]
