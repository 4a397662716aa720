"""Tools of the Responses dialect that are not plain functions."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from longrein.gateway.dialect import Arrival
from longrein.gateway.dialects.responses.dialect import ResponsesDialect
from longrein.types import Message
from tests.gateway.rig import Rig, assert_exact, rig, say

PARAMETERS = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
SPAWN = {"type": "function", "name": "spawn_agent", "description": "Start one", "strict": False}
AGENTS: Any = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "Sub-agents",
    "tools": [{**SPAWN, "parameters": PARAMETERS}, {"type": "custom", "name": "note"}],
}
GRAMMAR = 'start: "*** Begin Patch" LF'
PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files",
    "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
}
SHELL: Any = {"type": "local_shell"}
FUNCTION: Any = {**SPAWN, "parameters": PARAMETERS}
TOOLS: Any = [AGENTS, PATCH, SHELL, FUNCTION]
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


def call(name: str, arguments: dict[str, Any]) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "type": "function", "function": function}]}


async def ask(r: Rig, items: Any) -> None:
    async with r.client() as client:
        await client.responses.create(model="policy", input=items, tools=TOOLS)


async def stream(r: Rig) -> list[ResponseStreamEvent]:
    async with r.client() as client:
        events = await client.responses.create(model="policy", input="go", tools=TOOLS, stream=True)
        return [EVENT.validate_python(event.to_dict()) async for event in events]


CALLS: dict[str, tuple[Message, dict[str, Any]]] = {
    "namespace": (
        call("multi_agent_v1__spawn_agent", {"message": "go"}),
        {
            "type": "function_call",
            "name": "spawn_agent",
            "namespace": "multi_agent_v1",
            "arguments": '{"message": "go"}',
        },
    ),
    "custom": (
        call("apply_patch", {"input": "*** Begin Patch\n"}),
        {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin Patch\n"},
    ),
    "custom in a namespace": (
        call("multi_agent_v1__note", {"input": "x"}),
        {"type": "custom_tool_call", "name": "note", "namespace": "multi_agent_v1", "input": "x"},
    ),
    "custom without input": (
        call("apply_patch", {"patch": "x"}),
        {"type": "custom_tool_call", "name": "apply_patch", "input": '{"patch": "x"}'},
    ),
    "local shell": (
        call("local_shell", {"command": ["ls", "-l"], "timeout_ms": 5}),
        {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 5}},
    ),
    "local shell without a command": (
        call("local_shell", {"command": "ls"}),
        {"type": "function_call", "name": "local_shell", "arguments": '{"command": "ls"}'},
    ),
    "plain": (
        call("spawn_agent", {"message": "go"}),
        {"type": "function_call", "name": "spawn_agent", "arguments": '{"message": "go"}'},
    ),
    "never offered": (call("what", {}), {"type": "function_call", "name": "what", "arguments": "{}"}),
}
OUTPUTS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}


@pytest.mark.parametrize("case", CALLS)
async def test_a_call_has_its_tools_own_form_and_its_echo_is_known(case: str) -> None:
    turn, wanted = CALLS[case]
    async with rig([turn, say("done")]) as r:
        events = await stream(r)
        end = events[-1]
        assert end.type == "response.completed"
        item = end.response.output[0].to_dict()
        assert {key: item[key] for key in item if key not in ("id", "call_id", "status")} == wanted
        deltas = [event.delta for event in events if hasattr(event, "delta")]
        assert "".join(deltas) == str(item.get("arguments", item.get("input", "")))
        result: dict[str, Any] = {"call_id": item["call_id"], "output": "ok"}
        result["type"] = OUTPUTS.get(str(item["type"]), "local_shell_call_output")
        await ask(r, [{"role": "user", "content": "go"}, item, result])
        trace = r.trace()
        assert [one.parent_id for one in trace.calls] == [None, 0]
        assert trace.calls[1].messages == ({"role": "tool", "tool_call_id": item["call_id"], "content": "ok"},)
        assert_exact(trace, r.engine)


async def test_openais_result_of_a_local_shell_call_names_it_by_id() -> None:
    async with rig([say("done")]) as r:
        shell = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "status": "completed"}
        action = {"type": "exec", "command": ["ls"], "env": {}}
        result = {"type": "local_shell_call_output", "id": "c1", "output": "ok"}
        await ask(r, [{"role": "user", "content": "go"}, {**shell, "action": action}, result])
        assert r.trace().calls[0].messages[-1] == {"role": "tool", "tool_call_id": "c1", "content": "ok"}


async def test_what_the_model_is_offered() -> None:
    async with rig([say("x")]) as r:
        await ask(r, "go")
        offered = {tool["function"]["name"]: tool["function"] for tool in r.trace().calls[0].tools}
        names = ["multi_agent_v1__spawn_agent", "multi_agent_v1__note", "apply_patch", "local_shell", "spawn_agent"]
        assert list(offered) == names
        assert offered["multi_agent_v1__spawn_agent"]["parameters"] == PARAMETERS
        assert offered["apply_patch"]["description"] == f"Edit files\n\nGrammar of `input`:\n{GRAMMAR}"
        assert offered["apply_patch"]["parameters"]["required"] == ["input"]


async def test_hosted_tools_are_left_out_unless_forced() -> None:
    hosted: Any = {"type": "web_search", "external_web_access": True}
    async with rig([say("x")]) as r, r.client() as client:
        await client.responses.create(model="policy", input="go", tools=[hosted, FUNCTION])
        call = r.trace().calls[0]
        assert [tool["function"]["name"] for tool in call.tools] == ["spawn_agent"]
        assert call.asked == {"hosted_tools": ["web_search"]}
        for choice in ({"type": "web_search_preview"}, {"type": "mcp", "server_label": "x"}, {"kind": "x"}):
            forced: Any = choice
            with pytest.raises(openai.BadRequestError, match="tool_choice"):
                await client.responses.create(model="policy", input="go", tools=[hosted], tool_choice=forced)
        named: Any = {"type": "function", "name": "spawn_agent"}
        await client.responses.create(model="policy", input="go", tools=[FUNCTION], tool_choice=named)
        assert r.trace().calls[1].asked == {"tool_choice": named}


def test_history_reads_the_same_without_the_tools() -> None:
    """Codex compacts with ``tools: []``."""
    item = {"type": "function_call", "call_id": "c", "name": "spawn_agent", "namespace": "multi_agent_v1"}
    items = [{"role": "user", "content": "go"}, {**item, "arguments": "{}"}]

    def messages(tools: list[Any]) -> tuple[Message, ...]:
        body = json.dumps({"input": items, "tools": tools}).encode()
        return ResponsesDialect().decode(Arrival(path="/v1/responses", body=body)).messages

    assert messages([]) == messages(TOOLS)
