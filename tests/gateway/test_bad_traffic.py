"""Malformed traffic: refused in OpenAI's error form, counted, and without effect on the session."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from typing import Any

import aiohttp
import pytest

from tests.gateway.held import held
from tests.gateway.rig import BASH, USER, Rig, rig, run_bash, say

IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
DEEP = '{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"name": "f", '
DEEP += '"parameters": {"a": ' + "[" * 9000 + "]" * 9000 + "}}}]}"


def body(**fields: Any) -> str:
    return json.dumps({"model": "policy", "messages": [USER], **fields})


BAD: dict[str, tuple[str, str]] = {
    "not json": ("{nonsense", "JSON"),
    "not an object": ("[1, 2]", "object"),
    "empty": ("", "not a chat completion request"),
    "not utf-8": ('{"messages": "\udcff"}', "not a chat completion request"),
    "no messages": ("{}", "messages"),
    "empty messages": (body(messages=[]), "messages is empty"),
    "wrong type": (body(messages="hi"), "$.messages"),
    "wrong role": (body(messages=[{"role": "wizard", "content": "x"}]), "role"),
    "wrong stop": (body(stop=5), "stop"),
    "zero tokens": (body(max_tokens=0), "max_tokens"),
    "image": (body(messages=[IMAGE]), "content part"),
    "n": (body(n=2), "n > 1"),
    "schema": (body(response_format={"type": "json_schema"}), "json_schema"),
    "json mode": (body(response_format={"type": "json_object"}), "json_object"),
    "guided": (body(guided_regex="a+"), "guided_regex"),
    "logprobs": (body(logprobs=True), "logprobs"),
    "tool type": (body(tools=[{"type": "web_search", "function": {"name": "x"}}]), "tool type"),
    "nested": (DEEP, ""),
}


async def post(r: Rig, data: bytes, url: str = "") -> tuple[int, dict[str, Any]]:
    async with (
        aiohttp.ClientSession() as http,
        http.post(url or r.url, data=io.BytesIO(data), headers=r.auth) as response,
    ):
        return response.status, await response.json()


@pytest.mark.parametrize("case", BAD)
async def test_bad_request_is_a_400_that_says_why(case: str) -> None:
    text, says = BAD[case]
    async with rig([say("fine")]) as r:
        status, answer = await post(r, text.encode("utf-8", "surrogateescape"))
        assert status == 400
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert says in answer["error"]["message"]
        assert (await post(r, body().encode()))[0] == 200
        record = await r.gateway.close_session("s")
        assert record.failure is None and not record.truncated
        assert len(record.trace.calls) == 1 and record.counters["refused"] == 1


async def test_big_body_is_a_413_and_the_gateway_lives() -> None:
    async with rig([say("fine")]) as r:
        status, answer = await post(r, b" " * 10_000_000)
        assert (status, answer["error"]["code"]) == (413, "request_too_large")
        assert (await post(r, body().encode()))[0] == 200
        assert (await r.gateway.close_session("s")).counters["refused_request_too_large"] == 1


async def test_unknown_route_wrong_method_wrong_key() -> None:
    async with rig([]) as r, aiohttp.ClientSession() as http:
        base = f"http://127.0.0.1:{r.endpoint.port}"
        for method, url, headers, status in [
            ("POST", f"{r.endpoint.base_url}/v1/embeddings", {}, 404),
            ("GET", f"{base}/v1", r.auth, 404),
            ("GET", f"{base}/nonsense", {}, 401),
            ("DELETE", f"{base}/", r.auth, 405),
            ("GET", r.url, {}, 405),
            ("POST", f"{base}/v1/chat/completions", {}, 401),
            ("GET", f"{base}/v1/models", {"authorization": "Basic abc"}, 401),
            ("GET", f"{base}/é/v1/models", r.auth, 401),
        ]:
            async with http.request(method, url, headers=headers) as response:
                assert response.status == status, url
                assert "message" in (await response.json())["error"]


async def test_bytes_that_are_not_http() -> None:
    async with rig([say("fine")]) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.endpoint.port)
        writer.write(b"\x00\x01garbage\r\n\r\n")
        await reader.read()
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", r.endpoint.port)
        head = f"POST /{r.endpoint.api_key}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nhalf"
        writer.write(head.encode())
        await writer.drain()
        writer.close()
        assert (await post(r, body().encode()))[0] == 200


async def test_waiting_stream_gets_headers_at_once_and_keep_alives() -> None:
    async with held(keep_alive_s=0.02) as (r, script), aiohttp.ClientSession() as http:
        async with http.post(r.url, data=body(stream=True)) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            text = b"".join([await response.content.readexactly(len(": keep-alive\n\n")) for _ in range(3)]).decode()
            script.go.set()
            text += await response.text()
        assert text.startswith(": keep-alive\n\n" * 3)
        assert text.endswith("data: [DONE]\n\n")


async def test_malformed_tool_call_stays_visible() -> None:
    text = '<tool_call>{"name": "bash", "arguments": {"command": </tool_call>'
    async with rig([say(text)]) as r:
        status, answer = await post(r, body(tools=[BASH]).encode())
        assert status == 200
        choice = answer["choices"][0]
        assert choice["message"]["content"] == text and choice["finish_reason"] == "stop"
        assert "tool_calls" not in choice["message"]


async def test_neither_content_nor_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with rig([run_bash("cat treasure")]) as r:
        await post(r, body(messages=[{"role": "user", "content": "treasure"}]).encode())
        await post(r, b'{"treasure')
        await post(r, b"{}", url=f"{r.bare_url}/treasure")
    logged = "".join(record.getMessage() for record in caplog.records)
    assert "treasure" not in logged and r.endpoint.api_key not in logged


async def test_whoever_asks_whether_anybody_is_there_is_answered() -> None:
    async with rig([]) as r, aiohttp.ClientSession() as http:
        bare = f"http://127.0.0.1:{r.endpoint.port}"
        for url in (r.endpoint.base_url, f"{r.endpoint.base_url}/", f"{r.endpoint.base_url}/v1/models", f"{bare}/"):
            async with http.head(url, headers=r.auth) as head, http.get(url, headers=r.auth) as get:
                assert head.status == get.status == 200
                assert await head.read() == b"" and (await get.json())["data"][0]["id"] == "policy"
                assert head.headers["content-length"] == get.headers["content-length"]
        async with http.head(r.url) as head:
            assert head.status == 405
