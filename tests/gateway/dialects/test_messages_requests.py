"""How requests of the Messages dialect are read or refused."""

from __future__ import annotations

import itertools
import json
from typing import Any

import httpx2
import pytest

from longrein.gateway.dialect import Arrival, ChatRequest
from longrein.gateway.dialects.messages.dialect import MessagesDialect
from longrein.types import Message
from tests.gateway import captures
from tests.gateway.rig import Rig, rig, say

USER: Any = {"role": "user", "content": "go"}
CACHE = {"cache_control": {"type": "ephemeral"}}
DIALECT = MessagesDialect()


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "policy", "max_tokens": 9, "messages": [USER], **fields}).encode()


def decode(**fields: Any) -> ChatRequest:
    return DIALECT.decode(Arrival(path="/v1/messages", body=body(**fields)))


def read(*messages: Any) -> list[Message]:
    return list(decode(messages=[*messages]).messages)


def text(content: str, **marks: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **marks}


def use(call_id: str, **given_input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "bash", "input": given_input}


def result(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, **fields}


def call(call_id: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "bash", "arguments": arguments}}


@pytest.mark.parametrize("system", ["be good", [text("be good")], [text("be good", **CACHE)], [text("be"), text("")]])
def test_system_comes_first_in_whatever_form(system: Any) -> None:
    said = "be good" if "good" in str(system) else "be"
    assert decode(system=system).messages == ({"role": "system", "content": said}, {"role": "user", "content": "go"})


@pytest.mark.parametrize("system", [None, "", []])
def test_no_system_is_no_message(system: Any) -> None:
    assert decode(system=system).messages == ({"role": "user", "content": "go"},)


def test_system_messages_before_the_first_turn_are_the_system_prompts() -> None:
    first = {"role": "system", "content": [text("and brief")]}
    assert [message["content"] for message in decode(system="be good", messages=[first, USER]).messages] == [
        "be good\nand brief",
        "go",
    ]


def test_later_system_messages_are_reminders_since_templates_take_none() -> None:
    said = read(
        *(USER, {"role": "system", "content": "env"}, {"role": "assistant", "content": [use("a")]}),
        *({"role": "user", "content": [result("a")]}, {"role": "system", "content": [text("late", **CACHE)]}),
    )
    assert said == [
        {"role": "user", "content": "go\n<system-reminder>\nenv\n</system-reminder>"},
        {"role": "assistant", "content": "", "tool_calls": [call("a", "{}")]},
        {"role": "tool", "tool_call_id": "a", "content": ""},
        {"role": "user", "content": "<system-reminder>\nlate\n</system-reminder>"},
    ]


def test_tool_results_stand_alone_and_text_after_them_is_the_users() -> None:
    calls = {"role": "assistant", "content": [use("a", command="ls"), use("b")]}
    answers = [
        result("a", content="out"),
        result("b", content=[text("1"), text("2", **CACHE)], is_error=True, **CACHE),
        text("and"),
        text("now"),
    ]
    said = read(USER, calls, {"role": "user", "content": answers}, USER)
    assert said[1:] == [
        {"role": "assistant", "content": "", "tool_calls": [call("a", '{"command":"ls"}'), call("b", "{}")]},
        {"role": "tool", "tool_call_id": "a", "content": "out"},
        {"role": "tool", "tool_call_id": "b", "content": "1\n2"},
        {"role": "user", "content": "and\nnow\ngo"},
    ]


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_a_tool_result_may_be_empty_but_a_failure_is_told(content: Any) -> None:
    calls = {"role": "assistant", "content": [use("a")]}
    fine = read(USER, calls, {"role": "user", "content": [result("a", **content)]})
    failed = read(USER, calls, {"role": "user", "content": [result("a", is_error=True, **content)]})
    assert (fine[-1]["content"], bool(failed[-1]["content"])) == ("", True)


def test_thoughts_are_read_and_redacted_ones_are_skipped() -> None:
    thoughts = [
        {"type": "thinking", "thinking": "hm", "signature": "theirs"},
        {"type": "redacted_thinking", "data": "xyz"},
        text("a"),
    ]
    said = read(USER, {"role": "assistant", "content": thoughts}, USER)
    assert said[1] == {"role": "assistant", "content": "a", "reasoning_content": "hm"}
    unread = read(USER, {"role": "assistant", "content": [thoughts[1]]}, USER)
    assert unread[1] == {"role": "assistant", "content": ""}


def test_input_that_was_no_json_comes_back_as_it_was_said() -> None:
    kept = use("a", __unparsedToolInput={"raw": '{"command": ', "len": 12})
    said = read(USER, {"role": "assistant", "content": [kept]}, {"role": "user", "content": [result("a")]})
    assert said[1]["tool_calls"] == [call("a", '{"command": ')]


def test_tools_become_functions() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    tools = [{"name": "f", "description": "d", "input_schema": schema, **CACHE}, {"name": "g", "input_schema": {}}]
    functions = [tool["function"] for tool in decode(tools=[{**tools[0], "type": "custom"}, tools[1]]).tools]
    assert functions == [
        {"name": "f", "description": "d", "parameters": schema},
        {"name": "g", "description": "", "parameters": {"type": "object", "properties": {}}},
    ]


def nested(depth: int) -> Any:
    deep: Any = "x"
    for _ in range(depth):
        deep = [deep]
    return {"a": deep}


def user(*blocks: Any) -> Any:
    return {"messages": [{"role": "user", "content": [*blocks]}]}


BAD: dict[str, tuple[bytes, str]] = {
    "not json": (b"{nonsense", "JSON"),
    "not an object": (b"[1, 2]", "object"),
    "empty": (b"", "not a messages request"),
    "not utf-8": (b'{"messages": "\xff"}', "not a messages request"),
    "half a surrogate pair": (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "not a messages request"),
    "no messages": (b'{"max_tokens": 9}', "messages"),
    "empty messages": (body(messages=[]), "messages is empty"),
    "no max_tokens": (json.dumps({"messages": [USER]}).encode(), "max_tokens"),
    "zero tokens": (body(max_tokens=0), "max_tokens"),
    "wrong max_tokens": (body(max_tokens="9"), "max_tokens"),
    "wrong type": (body(messages="hi"), "$.messages"),
    "wrong role": (body(messages=[{"role": "tool", "content": "x"}]), "tool"),
    "wrong stop": (body(stop_sequences="STOP"), "stop_sequences"),
    "prefill": (body(messages=[USER, {"role": "assistant", "content": "The answer is"}]), "prefill"),
    "image": (body(**user({"type": "image", "source": {}})), "'image'"),
    "document": (body(**user({"type": "document", "source": {}})), "'document'"),
    "image in a result": (body(**user(result("a", content=[{"type": "image"}]))), "'image'"),
    "server tool use": (
        body(messages=[{"role": "assistant", "content": [{"type": "server_tool_use"}]}, USER]),
        "server_tool_use",
    ),
    "tool changes": (body(messages=[USER, {"role": "system", "content": [{"type": "tool_addition"}]}]), "addition"),
    "tool use by the user": (body(**user(use("a"))), "tool_use"),
    "block without a type": (body(**user({"text": "x"})), "None"),
    "block of an odd type": (body(**user({"type": [[]], "text": "x"})), "[[]]"),
    "text without text": (body(**user({"type": "text"})), "`text`"),
    "input that is no object": (
        body(messages=[{"role": "assistant", "content": [{**use("a"), "input": [1]}]}, USER]),
        "$.input",
    ),
    "web search": (body(tools=[{"type": "web_search_20250305", "name": "web_search"}]), "web_search_20250305"),
    "bash of theirs": (body(tools=[{"type": "bash_20250124", "name": "bash"}]), "bash_20250124"),
    "tool without a schema": (body(tools=[{"name": "f"}]), "input_schema"),
    "json schema": (body(output_config={"effort": "low", "format": {"type": "json_schema"}}), "output_config.format"),
    "old json schema": (body(output_format={"type": "json_schema"}), "output_format"),
    "mcp": (body(mcp_servers=[{"type": "url"}]), "mcp_servers"),
    "thread": (body(thread={"type": "create"}), "thread"),
    "nested input": (body(messages=[{"role": "assistant", "content": [use("a", **nested(900))]}, USER]), ""),
    "nested schema": (body(tools=[{"name": "f", "input_schema": nested(900)}]), ""),
    "nested out of bounds": (b'{"messages":' + b"[" * 5000, ""),
}


async def post(r: Rig, data: bytes) -> tuple[int, dict[str, Any]]:
    async with httpx2.AsyncClient() as http:
        response = await http.post(f"{r.endpoint.base_url}/v1/messages?beta=true", content=data)
        return response.status_code, response.json()


async def test_bad_requests_are_400s_that_say_why() -> None:
    async with rig([say("fine")]) as r:
        for case, (data, says) in BAD.items():
            status, answer = await post(r, data)
            assert (status, answer["type"], answer["error"]["type"]) == (400, "error", "invalid_request_error"), case
            assert says in answer["error"]["message"], case
        assert (await post(r, body(max_tokens=10**30)))[0] == 200
        record = await r.gateway.close_session("s")
        assert len(record.trace.calls) == 1 and record.counters["refused"] == len(BAD)


AGENTS = ("claude-code_lean", "opencode_ai-sdk-anthropic", "pi_anthropic")


@pytest.mark.parametrize("agent, scenario", [one for one in captures.scenarios() if one[0] in AGENTS])
def test_recorded_requests_extend_each_other_exactly(agent: str, scenario: str) -> None:
    requests = [DIALECT.decode(recorded.arrival) for recorded in captures.load(agent, scenario)]
    assert len(requests) > 2
    for earlier, later in itertools.pairwise(requests):
        grown = len(earlier.messages)
        assert later.messages[:grown] == earlier.messages and later.messages[grown]["role"] == "assistant"
        assert later.tools == earlier.tools
