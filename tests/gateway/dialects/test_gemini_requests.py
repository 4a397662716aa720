"""Gemini requests as messages: every form that clients send, every capture, and what is refused."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from longrein.errors import GatewayRequestError
from longrein.gateway import stitch
from longrein.gateway.dialect import Arrival, ChatReply, ChatRequest
from longrein.gateway.dialects.gemini.dialect import GeminiDialect
from longrein.types import Message
from tests.gateway.captures import load, scenarios

DIALECT = GeminiDialect()
WHOLE, STREAM = "/v1beta/models/policy:generateContent", "/v1beta/models/policy:streamGenerateContent"
HI: dict[str, Any] = {"role": "user", "parts": [{"text": "hi"}]}
THOUGHTS = {"thinkingConfig": {"includeThoughts": True}}


def read(path: str = WHOLE, query: str = "", contents: Any = (HI,), **fields: Any) -> ChatRequest:
    body = json.dumps({"contents": contents, **fields}).encode()
    return DIALECT.decode(Arrival(path=path, query=query, body=body))


def messages(*contents: Any) -> tuple[Message, ...]:
    return read(contents=contents).messages


def call(name: str, call_id: str = "", **args: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args, **({"id": call_id} if call_id else {})}}


def result(name: str, response: Any, call_id: str = "") -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": response, **({"id": call_id} if call_id else {})}}


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


@pytest.mark.parametrize(
    ("agent", "scenario"), [one for one in scenarios() if one[0] in ("gemini-cli", "opencode_ai-sdk-google")]
)
def test_recorded_requests_extend_each_other(agent: str, scenario: str) -> None:
    recorded = load(agent, scenario)
    decoded = [DIALECT.decode(one.arrival) for one in recorded]
    assert len({stitch.tools_meaning(request.tools) for request in decoded}) == 1
    for before, after in pairwise(decoded):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.messages[len(before.messages)]["role"] == "assistant"
    last = decoded[-1]
    assert last.stream and last.messages[0]["role"] == "system" and len(last.tools) >= 10
    calls = [one["id"] for message in last.messages for one in message.get("tool_calls", [])]
    assert calls and calls == [message["tool_call_id"] for message in last.messages if message["role"] == "tool"]
    assert all(message["content"] for message in last.messages if message["role"] == "tool")


def test_parts_are_joined_and_roles_are_openais() -> None:
    said = messages({"parts": [{"text": "a"}, {"text": "b"}]}, model({"text": "c"}, {"text": "d"}), user({"text": "e"}))
    assert [(message["role"], message["content"]) for message in said] == [
        *[("user", "a\nb"), ("assistant", "cd"), ("user", "e")]
    ]


def test_contents_of_the_model_in_a_row_are_one_message() -> None:
    thought = {"text": "hm", "thought": True}
    chunks = [model(thought), model({"text": "look"}), model(call("ls", "one")), user(result("ls", {}, "one"))]
    assert messages(HI, *chunks) == messages(HI, model(thought, {"text": "look"}, call("ls", "one")), chunks[-1])
    assert messages(HI, *chunks)[1]["reasoning_content"] == "hm"


def test_both_spellings_of_a_field_are_read() -> None:
    snake = {
        "system_instruction": {"parts": [{"text": "be good"}]},
        "tools": [{"function_declarations": [{"name": "f", "parameters_json_schema": {"type": "object"}}]}],
        "generation_config": {"max_output_tokens": 7, "stop_sequences": ["X"], "top_p": 0.5},
    }
    camel = {
        "systemInstruction": {"role": "user", "parts": [{"text": "be good"}]},
        "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": {"type": "object"}}]}],
        "generationConfig": {"maxOutputTokens": 7, "stopSequences": ["X"], "topP": 0.5},
    }
    assert read(**snake) == read(**camel)
    assert read(**camel).messages[0] == {"role": "system", "content": "be good"}
    assert read(**camel).max_tokens == 7 and read(**camel).stop == ("X",)
    parts = [{"function_call": {"name": "f"}, "thought_signature": "eA=="}]
    assert messages(HI, model(*parts)) == messages(HI, model(call("f")))


@pytest.mark.parametrize(
    ("response", "content"),
    [
        ({"output": "é\n"}, "é\n"),
        ({"result": "x"}, "x"),
        ({"name": "f", "content": "x"}, "x"),
        ({"error": "no such file"}, '{"error":"no such file"}'),
        ({"result": 5}, '{"result":5}'),
        ({"output": "x", "exit": 1}, '{"output":"x","exit":1}'),
        ({"name": "g", "content": "x"}, '{"name":"g","content":"x"}'),
        ({"n": 10**30}, '{"n":1000000000000000000000000000000}'),
        ({}, "{}"),
        (None, "{}"),
    ],
)
def test_a_result_as_text(response: Any, content: str) -> None:
    said = messages(HI, model(call("f", "one")), user(result("f", response, "one")))
    assert said[-1] == {"role": "tool", "name": "f", "tool_call_id": "one", "content": content}


def test_results_without_ids_answer_by_name_in_order() -> None:
    calls = model(call("f", x=1), call("g"), call("f", x=2))
    said = messages(HI, calls, user(result("g", {}), result("f", {"output": "1"}), result("f", {"output": "2"})))
    ids = [one["id"] for one in said[1]["tool_calls"]]
    assert len(set(ids)) == 3
    assert [message["tool_call_id"] for message in said[2:]] == [ids[1], ids[0], ids[2]]
    again = messages(HI, calls, user(result("g", {})), model(call("f")), user(result("f", {})))
    assert again[1] == said[1] and again[2] == said[2]
    assert again[-1]["tool_call_id"] == again[3]["tool_calls"][0]["id"] not in ids


def test_what_a_user_says_beside_a_result_stays_in_order() -> None:
    said = messages(HI, model(call("f", "one")), user(result("f", {}, "one"), {"text": "note"}, {"text": "well"}))
    assert [message["role"] for message in said[2:]] == ["tool", "user"] and said[3]["content"] == "note\nwell"


def test_schemas_of_google_become_json_schemas() -> None:
    parameters = {
        "type": "OBJECT",
        "properties": {
            "type": {"type": "STRING", "enum": ["OBJECT"], "description": "STRING"},
            "list": {"type": "ARRAY", "items": {"anyOf": [{"type": "NUMBER"}, {"type": "NULL"}]}},
        },
        "default": {"type": "OBJECT"},
        "required": ["type"],
    }
    [tool] = read(tools=[{"functionDeclarations": [{"name": "f", "parameters": parameters}]}]).tools
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": ["OBJECT"], "description": "STRING"},
            "list": {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
        },
        "default": {"type": "OBJECT"},
        "required": ["type"],
    }
    [bare] = read(tools=[{"functionDeclarations": [{"name": "f"}]}]).tools
    assert bare["function"] == {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}


def test_wishes_are_recorded_in_googles_names() -> None:
    config = {"temperature": 1, "topP": 0.9, "topK": 64, "maxOutputTokens": 9, "seed": 1, **THOUGHTS}
    asked = read(generationConfig=config, toolConfig={"functionCallingConfig": {"mode": "ANY"}}).asked
    assert asked == {**config, "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}


def test_a_stream_is_one_only_as_events() -> None:
    assert read(STREAM, "alt=sse").stream and read(STREAM, "key=x&%24alt=sse").stream
    whole, array = read(WHOLE, "alt=sse"), read(STREAM)
    assert not whole.stream and not array.stream
    reply = ChatReply(
        message={"role": "assistant", "content": "x"}, finish_reason="length", prompt_tokens=5, completion_tokens=2
    )
    answer = json.loads(DIALECT.encode(reply, whole, "policy"))
    [chunk] = json.loads(DIALECT.encode(reply, array, "policy"))
    assert chunk["candidates"] == answer["candidates"]
    assert chunk["candidates"][0]["finishReason"] == "MAX_TOKENS"
    assert answer["usageMetadata"]["totalTokenCount"] == 7


DEEP = (
    '{"contents": [{"parts": [{"functionResponse": {"name": "f", "response": {"a": ' + "[" * 900 + "]" * 900 + "}}}]}]}"
)
IMAGE = {"inlineData": {"mimeType": "image/png", "data": ""}}


def text(contents: Any = (HI,), **fields: Any) -> str:
    return json.dumps({"contents": contents, **fields})


BAD: dict[str, tuple[str, str]] = {
    "not json": ("{nonsense", "JSON"),
    "not an object": ("[1]", "object"),
    "empty": ("", "not a generateContent request"),
    "not utf-8": ('{"contents": "\udcff"}', "UTF-8"),
    "half a surrogate pair": ('{"contents": [{"parts": [{"text": "\\ud800"}]}]}', "not a generateContent request"),
    "endless digits": ('{"contents": [], "x": ' + "9" * 5000 + "}", "out of range"),
    "nested past reading": ('{"contents": ' + "[" * 5000 + "]" * 5000 + "}", "recursion"),
    "no contents": ("{}", "contents"),
    "empty contents": (text([]), "contents is empty"),
    "contents of strings": (text(["hi"]), "contents"),
    "wrong role": (text([{"role": "system", "parts": [{"text": "x"}]}]), "role"),
    "role of a wrong type": (text([{"role": 5, "parts": []}]), "role"),
    "no parts": (text([{}]), "parts"),
    "empty part": (text([user({})]), "part"),
    "text of a wrong type": (text([user({"text": 5})]), "text"),
    "image": (text([user(IMAGE)]), "inlineData"),
    "snake image": (text([user({"inline_data": {}})]), "inline_data"),
    "file": (text([user({"fileData": {}})]), "fileData"),
    "file in the system": (text(systemInstruction={"parts": [IMAGE]}), "inlineData"),
    "call in the system": (text(systemInstruction={"parts": [call("f")]}), "functionCall"),
    "media in a result": (text([user({"functionResponse": {"name": "f", "parts": [IMAGE]}})]), "media"),
    "call by the user": (text([user(call("f"))]), "role model"),
    "result by the model": (text([model(result("f", {}))]), "role user"),
    "call without a name": (text([model({"functionCall": {"args": {}}})]), "name"),
    "arguments of a wrong type": (text([model({"functionCall": {"name": "f", "args": "{}"}})]), "args"),
    "result of a wrong type": (text([user(result("f", "x"))]), "response"),
    "hosted tool": (text(tools=[{"googleSearch": {}}]), "googleSearch"),
    "hosted tool beside functions": (text(tools=[{"functionDeclarations": [], "url_context": {}}]), "url_context"),
    "tools of a wrong type": (text(tools={"functionDeclarations": []}), "tools"),
    "declarations of a wrong type": (text(tools=[{"functionDeclarations": ["f"]}]), "Expected `object`"),
    "candidates": (text(generationConfig={"candidateCount": 2}), "candidateCount"),
    "json mode": (text(generationConfig={"responseMimeType": "application/json"}), "responseMimeType"),
    "schema": (text(generationConfig={"response_schema": {"type": "OBJECT"}}), "responseSchema"),
    "json schema": (text(generationConfig={"responseJsonSchema": {"type": "object"}}), "responseJsonSchema"),
    "speech": (text(generationConfig={"responseModalities": ["AUDIO"]}), "responseModalities"),
    "logprobs": (text(generationConfig={"responseLogprobs": True}), "responseLogprobs"),
    "cached content": (text(cachedContent="cachedContents/x"), "cachedContent"),
    "zero tokens": (text(generationConfig={"maxOutputTokens": 0}), "maxOutputTokens"),
    "wrong stop": (text(generationConfig={"stopSequences": "X"}), "stopSequences"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_says_why(case: str) -> None:
    body, says = BAD[case]
    with pytest.raises(GatewayRequestError) as caught:
        DIALECT.decode(Arrival(path=WHOLE, body=body.encode("utf-8", "surrogateescape")))
    assert caught.value.status == 400 and says in str(caught.value)


def test_a_result_nested_deep_is_read() -> None:
    request = DIALECT.decode(Arrival(path=WHOLE, body=DEEP.encode()))
    assert request.messages[0]["content"].startswith('{"a":[[[[')


def test_thoughts_are_shown_only_when_asked_for() -> None:
    message: Message = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    reply = ChatReply(message=message, finish_reason="stop", prompt_tokens=1, completion_tokens=1)
    for config, parts in [(THOUGHTS, [{"text": "hm", "thought": True}]), ({}, [{"text": ""}])]:
        request = read(generationConfig=config)
        [candidate] = msgspec.json.decode(DIALECT.encode(reply, request, "policy"))["candidates"]
        assert candidate["content"]["parts"] == parts
