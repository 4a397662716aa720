"""The agent's side: keeps a conversation, sends it, takes the answer in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import msgspec

from gateway_bench.payloads import Root
from gateway_bench.process import Endpoint


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """An answer."""

    message: dict[str, Any]
    seconds: float
    """From sending to having the answer whole."""
    comments: int = 0
    """Keep-alives before it."""


class Talk:
    """One conversation of one session."""

    def __init__(self, root: Root, endpoint: Endpoint, http: aiohttp.ClientSession, *, stream: bool) -> None:
        self._http = http
        self._stream = stream
        self._url = endpoint.url
        self._headers = {"content-type": "application/json"}
        if endpoint.key:
            self._headers["authorization"] = f"Bearer {endpoint.key}"
        head = {"model": "policy", "temperature": 0.7, "max_tokens": 4000, "tools": root.tools, "messages": []}
        self._head = msgspec.json.encode(head)[:-2]
        self._messages = [msgspec.json.encode(message) for message in root.messages]

    async def ask(self) -> Heard:
        """Send the conversation as it stands.

        Raises:
            SystemExit: anything but a whole answer.
        """
        tail = b'],"stream":true}' if self._stream else b'],"stream":false}'
        body = self._head + b",".join(self._messages) + tail
        began = time.perf_counter()
        async with self._http.post(self._url, data=body, headers=self._headers) as response:
            answer = await response.read()
            status = response.status
        seconds = time.perf_counter() - began
        if status != 200:
            raise SystemExit(f"{self._url} answered {status}: {answer[:500]!r}")
        if self._stream:
            return Heard(message=_assembled(answer), seconds=seconds, comments=answer.count(b": keep-alive"))
        return Heard(message=_ANSWER.decode(answer).choices[0].message, seconds=seconds)

    def go_on(self, heard: Heard, result: str) -> None:
        """Take an answer in, and what its tool gave."""
        message = heard.message
        said: dict[str, Any] = {"role": "assistant", "content": message.get("content")}
        then: dict[str, Any] = {"role": "user", "content": result}
        if calls := message.get("tool_calls"):
            said["tool_calls"] = calls
            then = {"role": "tool", "tool_call_id": calls[0]["id"], "content": result}
        self._messages += [msgspec.json.encode(said), msgspec.json.encode(then)]


class _Choice(msgspec.Struct, frozen=True):
    message: dict[str, Any]


class _Answer(msgspec.Struct, frozen=True):
    choices: list[_Choice]


class _Delta(msgspec.Struct, frozen=True):
    delta: dict[str, Any]


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Delta] = []


_ANSWER = msgspec.json.Decoder(_Answer)
_CHUNK = msgspec.json.Decoder(_Chunk)


def _deltas(stream: bytes) -> Iterator[dict[str, Any]]:
    if b"data: [DONE]" not in stream[-64:]:
        raise SystemExit(f"a stream ended early: {stream[-300:]!r}")
    for line in stream.split(b"\n"):
        if line.startswith(b"data: {"):
            for choice in _CHUNK.decode(line[6:]).choices:
                yield choice.delta


def _assembled(stream: bytes) -> dict[str, Any]:
    content = ""
    calls: list[dict[str, Any]] = []
    for delta in _deltas(stream):
        content += delta.get("content") or ""
        for part in delta.get("tool_calls") or []:
            function = part.get("function") or {}
            if part["index"] == len(calls):
                calls.append({"id": part["id"], "type": "function", "function": {"name": "", "arguments": ""}})
            known = calls[part["index"]]["function"]
            known["name"] = function.get("name") or known["name"]
            known["arguments"] += function.get("arguments") or ""
    return {"content": content, "tool_calls": calls}
