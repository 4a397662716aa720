"""The four dialects as a test speaks them: how to ask one question, what an answer and a refusal look like."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.gateway.rig import Rig


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What came back."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


class Tongue(msgspec.Struct, frozen=True, kw_only=True):
    """One dialect, streamed or not."""

    name: str
    stream: bool
    path: str
    """Without the secret, with the query."""
    body: Callable[[str], dict[str, Any]]
    """A request whose only message is this text."""
    refusal: Callable[[Any], bool]
    """Whether parsed JSON is this dialect's error body."""
    stream_refusal: str
    """What the end of a stream that failed has in it."""

    async def ask(self, r: Rig, text: str, **fields: Any) -> Heard:
        return await self.post(f"{r.endpoint.base_url}{self.path}", json.dumps({**self.body(text), **fields}).encode())

    async def post(self, url: str, body: bytes, headers: dict[str, str] | None = None) -> Heard:
        sent = {"content-type": "application/json", **(headers or {})}
        async with aiohttp.ClientSession() as http, http.post(url, data=body, headers=sent) as answer:
            received = {name.lower(): value for name, value in answer.headers.items()}
            return Heard(status=answer.status, headers=received, text=await answer.text())

    def refuses(self, heard: Heard) -> bool:
        """A refusal in this dialect's form, at the start or at the end of a stream."""
        if heard.status != 200:
            return self.refusal(heard.json())
        return self.stream and self.stream_refusal in heard.text


def _openai(error: Any) -> bool:
    return set(error) == {"error"} and {"message", "type", "param", "code"} <= set(error["error"])


def _anthropic(error: Any) -> bool:
    return error["type"] == "error" and {"type", "message"} <= set(error["error"])


def _google(error: Any) -> bool:
    return set(error) == {"error"} and {"code", "message", "status"} <= set(error["error"])


def _tongues() -> list[Tongue]:
    found: list[Tongue] = []
    for stream in (False, True):
        found += [
            Tongue(
                name="chat",
                stream=stream,
                path="/v1/chat/completions",
                body=lambda text, stream=stream: {"messages": [{"role": "user", "content": text}], "stream": stream},
                refusal=_openai,
                stream_refusal='"error":{',
            ),
            Tongue(
                name="responses",
                stream=stream,
                path="/v1/responses",
                body=lambda text, stream=stream: {"input": text, "stream": stream},
                refusal=_openai,
                stream_refusal="response.failed",
            ),
            Tongue(
                name="messages",
                stream=stream,
                path="/v1/messages?beta=true",
                body=lambda text, stream=stream: {
                    "model": "policy",
                    "max_tokens": 1000,
                    "messages": [{"role": "user", "content": text}],
                    "stream": stream,
                },
                refusal=_anthropic,
                stream_refusal="event: error",
            ),
            Tongue(
                name="gemini",
                stream=stream,
                path=f"/v1beta/models/policy:{'streamGenerateContent?alt=sse' if stream else 'generateContent'}",
                body=lambda text: {"contents": [{"role": "user", "parts": [{"text": text}]}]},
                refusal=_google,
                stream_refusal='"error":{',
            ),
        ]
    return found


TONGUES = {f"{tongue.name}{'-stream' if tongue.stream else ''}": tongue for tongue in _tongues()}
in_every_tongue = pytest.mark.parametrize("tongue", TONGUES.values(), ids=TONGUES)
