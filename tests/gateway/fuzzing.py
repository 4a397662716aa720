"""Requests at random: what they are, and a model that says something of every kind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import cache
from random import Random

import msgspec

from longrein.engines.base import EngineRequest
from longrein.engines.scripted import Entry
from longrein.types import I32, Message
from tests.gateway.captures import load, scenarios
from tests.gateway.openapi import Maker, Operation, operation_of, operations
from tests.gateway.rig import renderer, run_bash, say

POSTS = tuple(one for one in operations() if one.body)
SMALL = 6000
"""Bytes of a recorded request, so that most time goes into requests and not into rendering long prompts."""
WITNESS = "s"


class Chatter:
    """Says something of every kind, marked with the session that it is said in."""

    def tell(self, conversation_id: str, turns: Sequence[Entry]) -> None:
        raise NotImplementedError

    async def reply(self, request: EngineRequest) -> I32:
        random = Random(request.prompt_ids.tobytes())
        mark = f"<<{request.conversation_id}>>"
        said: tuple[Message, ...] = (
            say(mark),
            say(f"<think>{mark}</think>{mark}"),
            run_bash(mark, mark),
            say(f'<tool_call>{{"name": "{mark}", "arguments": '),
            say(mark + "é\U0001f40e" * 50),
        )
        if request.conversation_id == WITNESS:
            return renderer().encode_reply(say(mark))
        if random.random() < 0.2:
            await asyncio.sleep(0)
        ids = renderer().encode_reply(random.choice(said))
        return ids[: random.choice((ids.size, ids.size, 1 + ids.size // 2))]


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    method: str
    path: str
    """Without the secret."""
    query: str
    body: bytes
    refusal: str
    """Name of the error body's schema; empty where the path tells no dialect."""


@cache
def recorded() -> tuple[Sent, ...]:
    """What agents sent, as far as it is small."""
    found: list[Sent] = []
    for agent, scenario in scenarios():
        for one in load(agent, scenario):
            body = json.dumps(one.body).encode()
            if len(body) <= SMALL:
                refusal = operation_of(one.path).refusal
                found.append(Sent(method=one.method, path=one.path, query=one.query, body=body, refusal=refusal))
    return tuple(found)


class Fuzzer:
    """Draws requests."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.maker = Maker(random)

    def request(self) -> Sent:
        """Sound or spoiled, by schema or by record."""
        match self.random.randrange(20):
            case 0:
                return self._garbled(self.random.choice(recorded()))
            case 1:
                return self._misplaced(self._made(self.random.choice(operations()), spoil=False))
            case 2 | 3:
                return self._garbled(self._made(self.random.choice(POSTS), spoil=False))
            case kind:
                return self._made(self.random.choice(operations()), spoil=kind < 11)

    def _made(self, operation: Operation, *, spoil: bool) -> Sent:
        body = b""
        if operation.body:
            value = self.maker.value(operation.body)
            body = json.dumps(self.maker.spoiled(value) if spoil else value).encode()
        return Sent(
            method=operation.method,
            path=operation.path.replace("{model}", self.random.choice(("policy", "a:b", "models/x", "é"))),
            query=self.random.choice(operation.queries),
            body=body,
            refusal=operation.refusal,
        )

    def _garbled(self, sent: Sent) -> Sent:
        return msgspec.structs.replace(sent, body=self.maker.garbled(sent.body))

    def _misplaced(self, sent: Sent) -> Sent:
        method = self.random.choice(("GET", "PUT", "DELETE", "OPTIONS", "POST", "PATCH", "BREW"))
        path = sent.path + self.random.choice(("", "/", "/x", ":x", "\x00", "/../..", "//v1/models", ":countTokens"))
        return msgspec.structs.replace(sent, method=method, path=path, refusal="")
