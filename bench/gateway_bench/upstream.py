"""The canned engine: answers chat completions and token-in generation at once, in vLLM's own form.

Bodies are encoded when the payload is set, so that an answer costs next to nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

ROLE = re.compile(rb'"role"')
STREAMED = re.compile(rb'"stream"\s*:\s*true')


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """One completion."""

    token_ids: list[int]
    content: str
    arguments: str


class Canned(msgspec.Struct, frozen=True, kw_only=True):
    """What to answer from now on."""

    completions: list[Spoken]
    prompt_tokens: int
    """Of a request with ``root_messages`` messages."""
    root_messages: int
    result_tokens: int
    """What a conversation grows by between a completion and the next request."""
    delay_s: float = 0.0


class CannedBodies:
    """Answers by the number of messages in a request."""

    def __init__(self, canned: Canned) -> None:
        self.canned = canned
        self._said = 0
        self._generated = [msgspec.json.encode(_generate(spoken)) for spoken in canned.completions]
        self._chats: dict[int, bytes] = {}
        self._streams: dict[int, bytes] = {}

    def generate(self) -> bytes:
        """The next completion, for a request in token ids."""
        self._said += 1
        return self._generated[self._said % len(self._generated)]

    def chat(self, body: bytes) -> bytes:
        """The completion of a conversation of that length, with prompt ids that extend those of the call before."""
        step = self._step(body)
        if step not in self._chats:
            self._chats[step] = msgspec.json.encode(self._chat(step))
        return self._chats[step]

    def stream(self, body: bytes) -> bytes:
        """The same as events, one a token."""
        step = self._step(body)
        if step not in self._streams:
            self._streams[step] = _events(self._chat(step))
        return self._streams[step]

    def _step(self, body: bytes) -> int:
        return max(len(ROLE.findall(body)) - self.canned.root_messages, 0) // 2

    def _spoken(self, step: int) -> Spoken:
        return self.canned.completions[step % len(self.canned.completions)]

    def _chat(self, step: int) -> dict[str, Any]:
        prompt = _filler(self.canned.prompt_tokens, 1)
        for earlier in range(step):
            prompt += self._spoken(earlier).token_ids + _filler(self.canned.result_tokens, earlier + 2)
        spoken = self._spoken(step)
        function = {"name": "write", "arguments": spoken.arguments}
        call = {"id": f"call{step:05d}", "type": "function", "function": function}
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": spoken.content, "tool_calls": [call]},
            "logprobs": _logprobs(spoken.token_ids),
            "finish_reason": "tool_calls",
            "token_ids": spoken.token_ids,
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(spoken.token_ids)}
        usage["total_tokens"] = sum(usage.values())
        return {**_HEAD, "choices": [choice], "usage": usage, "prompt_token_ids": prompt}


_HEAD = {"id": "chatcmpl-0", "object": "chat.completion", "created": 1, "model": "policy"}


def _filler(tokens: int, seed: int) -> list[int]:
    return [1000 + (seed * 7919 + at * 104729) % 40000 for at in range(tokens)]


def _logprobs(token_ids: list[int]) -> dict[str, Any]:
    entries = [
        {"token": f"token_id:{token}", "logprob": -(at % 89) / 64 - 0.015625, "bytes": None, "top_logprobs": []}
        for at, token in enumerate(token_ids)
    ]
    return {"content": entries}


def _generate(spoken: Spoken) -> dict[str, Any]:
    choice = {
        "index": 0,
        "token_ids": spoken.token_ids,
        "logprobs": _logprobs(spoken.token_ids),
        "finish_reason": "stop",
    }
    return {"request_id": "gen-0", "choices": [choice], "prompt_logprobs": None}


def _events(chat: dict[str, Any]) -> bytes:
    [choice] = chat["choices"]
    head = {**_HEAD, "object": "chat.completion.chunk"}
    entries = choice["logprobs"]["content"]
    text = choice["message"]["tool_calls"][0]["function"]["arguments"]
    pieces = [text[at * len(text) // len(entries) : (at + 1) * len(text) // len(entries)] for at in range(len(entries))]
    chunks: list[dict[str, Any]] = []
    for at, (piece, entry) in enumerate(zip(pieces, entries, strict=True)):
        call: dict[str, Any] = {"index": 0, "function": {"arguments": piece}}
        if at == 0:
            call = {**choice["message"]["tool_calls"][0], **call, "function": {"name": "write", "arguments": piece}}
        delta = {"role": "assistant", "content": choice["message"]["content"]} if at == 0 else {}
        logprobs = {"content": [entry]}
        chunks.append(
            {**head, "choices": [{"index": 0, "delta": {**delta, "tool_calls": [call]}, "logprobs": logprobs}]}
        )
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    return b"".join(b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Upstream:
    """An ASGI application."""

    def __init__(self) -> None:
        self._bodies: CannedBodies | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        path: str = scope["path"]
        kind = b"application/json"
        if path == "/canned":
            self._bodies = CannedBodies(msgspec.json.decode(body, type=Canned))
            answer = b"{}"
        elif path.endswith("/models"):
            answer = b'{"object":"list","data":[{"id":"policy","object":"model","max_model_len":1000000}]}'
        else:
            assert self._bodies is not None
            await asyncio.sleep(self._bodies.canned.delay_s)
            if path.endswith("/generate"):
                answer = self._bodies.generate()
            elif STREAMED.search(body[-200:]):
                answer, kind = self._bodies.stream(body), b"text/event-stream"
            else:
                answer = self._bodies.chat(body)
        await respond(send, answer, kind)


async def read_body(receive: Receive) -> bytes:
    """A request body, whole."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def respond(send: Send, body: bytes, kind: bytes) -> None:
    """A response of status 200, whole."""
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
