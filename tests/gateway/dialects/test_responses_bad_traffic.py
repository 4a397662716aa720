"""Malformed Responses requests: a 400 that says what and where, and no other effect."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.errors import GatewayRequestError
from longrein.gateway.dialect import Arrival
from longrein.gateway.dialects.responses.dialect import ResponsesDialect
from tests.gateway.rig import rig, say


def body(*items: Any, **fields: Any) -> str:
    return json.dumps({"model": "policy", "input": [{"role": "user", "content": "x"}, *items], **fields})


def part(**fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": [fields]}


DEEP = "[" * 900 + "]" * 900
DEEPER = "[" * 100_000
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
SCHEMA = {"format": {"type": "json_schema", "name": "x", "schema": {}}}
NAMED = {"type": "function", "name": "f"}
BAD: dict[str, tuple[str, str]] = {
    "not json": ("{nonsense", "JSON"),
    "not an object": ("[1, 2]", "object"),
    "empty": ("", "not a responses request"),
    "not utf-8": ('{"input": "\udcff"}', "not a responses request"),
    "half a surrogate pair": ('{"input": "\\ud800"}', "not a responses request"),
    "endless digits": ('{"input": "x", "temperature": ' + "9" * 5000 + "}", "out of range"),
    "nested too deeply": ('{"input": ' + DEEPER + "}", "not a responses request"),
    "no input": ("{}", "input"),
    "no items": ('{"input": []}', "input is empty"),
    "input of a wrong type": ('{"input": 5}', "$.input"),
    "item of a wrong type": (body("hi"), "$.input[1]"),
    "unknown item": (body({"type": "item_reference", "id": "x"}), "input[1]: unsupported item type"),
    "type of a wrong type": (body({"type": {}}), "input[1]: unsupported item type"),
    "no role": (body({"content": "x"}), "input[1] is malformed"),
    "unknown role": (body({"role": "tool", "content": "x"}), "input[1]: unsupported role"),
    "no content": (body({"role": "user"}), "input[1] is malformed"),
    "image": (body(part(type="input_image", image_url="data:")), "input[1]: unsupported content part"),
    "file": (body(part(type="input_file", file_id="x")), "not images, audio or files"),
    "audio": (body(part(type="input_audio", text="x")), "not images, audio or files"),
    "part without text": (body(part(type="input_text")), "content part"),
    "image from a tool": (body({"type": "function_call_output", "call_id": "c", "output": [{"type": "x"}]}), "part"),
    "result without a call": (body({"type": "function_call_output", "output": "x"}), "input[1]: call_id"),
    "call without arguments": (body({**CALL, "arguments": None}), "input[1] is malformed"),
    "namespace of a wrong type": (body({**CALL, "namespace": []}), "input[1] is malformed"),
    "summary of a wrong type": (body({"type": "reasoning", "summary": "x"}), "input[1] is malformed"),
    "action without a command": (body({"type": "local_shell_call", "call_id": "c", "action": {}}), "input[1]"),
    "tool of a wrong type": (body(tools=["x"]), "$.tools[0]"),
    "tool without a type": (body(tools=[{"name": "x"}]), "tools[0] is malformed"),
    "tool in the chat dialect's form": (body(tools=[{"type": "function", "function": {}}]), "tools[0] is malformed"),
    "namespace without tools": (body(tools=[{"type": "namespace", "name": "n"}]), "tools[0] is malformed"),
    "namespace with a bad tool": (body(tools=[{"type": "namespace", "name": "n", "tools": [{}]}]), "tools[0]"),
    "two tools of one name": (body(tools=[NAMED, {"type": "custom", "name": "f"}]), "tools[1]"),
    "zero tokens": (body(max_output_tokens=0), "max_output_tokens"),
    "schema": (body(text=SCHEMA), "json_schema"),
    "json mode": (body(text={"format": {"type": "json_object"}}), "json_object"),
    "state": (body(previous_response_id="resp_1"), "previous_response_id"),
    "conversation": (body(conversation="conv_1"), "conversation"),
    "stored prompt": (body(prompt={"id": "pmpt_1"}), "prompt"),
    "background": (body(background=True), "background"),
    "logprobs": (body(include=["message.output_text.logprobs"]), "logprobs"),
    "top logprobs": (body(top_logprobs=3), "top_logprobs"),
}


async def post(url: str, data: bytes) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as http, http.post(url, data=data) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("case", BAD)
async def test_bad_request_is_a_400_that_says_why(case: str) -> None:
    text, says = BAD[case]
    async with rig([say("fine")]) as r:
        url = f"{r.endpoint.base_url}/v1/responses"
        status, answer = await post(url, text.encode("utf-8", "surrogateescape"))
        assert status == 400, answer
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert says in answer["error"]["message"]
        assert (await post(url, body().encode()))[0] == 200
        record = await r.gateway.close_session("s")
        assert record.failure is None and not record.truncated
        assert len(record.trace.calls) == 1 and record.counters["refused"] == 1


STRANGE = {
    "deep parameters": body(tools=[{**NAMED, "parameters": {"a": 1}}]).replace('{"a": 1}', '{"a": ' + DEEP + "}"),
    "deep metadata": body(metadata={"a": 1}).replace('{"a": 1}', '{"a": ' + DEEP + "}"),
    "deep arguments": body({**CALL, "arguments": DEEP}),
    "deep choice": body(tool_choice={"type": "function", "x": 1}).replace('"x": 1', '"x": ' + DEEP),
    "huge numbers": body(
        max_output_tokens=10**25, metadata={"n": 10**40}, tools=[{**NAMED, "parameters": {"n": 10**30}}]
    ),
    "broken arguments": body({**CALL, "arguments": '{"a'}),
    "not our seal": body({"type": "reasoning", "summary": [], "encrypted_content": "longrein.%%%"}),
    "not utf-8 under our seal": body({"type": "reasoning", "summary": [], "encrypted_content": "longrein./w=="}),
    "nothing but a thought": body({"type": "reasoning", "summary": [], "content": None, "id": None}),
}


@pytest.mark.parametrize("case", STRANGE)
async def test_strange_request_is_answered_or_refused(case: str) -> None:
    async with rig([say("fine")]) as r:
        status, _ = await post(f"{r.endpoint.base_url}/v1/responses", STRANGE[case].encode())
        assert status in (200, 400)
        record = await r.gateway.close_session("s")
        assert record.failure is None


WORDS = ("type", "role", "content", "text", "output", "summary", "name", "tools", "input", "action", "namespace")
TYPES = ("message", "reasoning", "function_call", "function_call_output", "local_shell_call", "custom", "namespace")
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.sampled_from(TYPES)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS) | st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = ("input", "tools", "tool_choice", "text", "include", "instructions", "max_output_tokens", "metadata", "stream")


@settings(deadline=None, max_examples=300)
@given(fields=st.dictionaries(st.sampled_from(FIELDS), JSON), items=st.lists(JSON, max_size=4), tools=st.lists(JSON))
def test_any_json_is_read_or_refused(fields: dict[str, Any], items: list[Any], tools: list[Any]) -> None:
    dialect = ResponsesDialect()
    for data in (fields, {**fields, "input": items}, {"input": items, "tools": tools}):
        try:
            dialect.decode(Arrival(path="/v1/responses", body=json.dumps(data).encode()))
        except GatewayRequestError as error:
            assert error.status == 400
