"""What one body of the largest size costs: time that grows with the body, not with its square; and bounds."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from longrein.gateway.aside import LARGE_BYTES, aside
from longrein.gateway.dialect import Arrival, Dialect
from longrein.gateway.routes import CHAT, GEMINI
from longrein.gateway.sizes import MAX_CALLS, MAX_MESSAGES, MAX_TOOLS
from longrein.gateway.tree import CallTree
from tests.gateway.rig import BASH, PATIENCE_S, USER, rig, say
from tests.gateway.tongues import TONGUES, Tongue, in_every_tongue


@contextmanager
def cpu_s_below(bound: float) -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < bound


def decoded(dialect: Dialect, body: Any, path: str = "") -> Any:
    return dialect.decode(Arrival(path=path, body=json.dumps(body).encode()))


def test_results_find_their_calls_without_looking_at_every_call() -> None:
    parts = [{"functionCall": {"name": "f"}}] * 10_000
    results = [{"functionResponse": {"name": "g"}}] * 5_000 + [{"functionResponse": {"name": "f"}}] * 5_000
    contents = [{"parts": [{"text": "x"}]}, {"role": "model", "parts": parts}, {"parts": results}]
    with cpu_s_below(3):
        request = decoded(GEMINI, {"contents": contents}, "/v1beta/models/m:generateContent")
    answered = [message["tool_call_id"] for message in request.messages if message["role"] == "tool"]
    assert answered[:5_000] == [""] * 5_000 and answered[5_000:] == [f"u{at:08d}" for at in range(5_000)]


def test_results_are_matched_to_calls_without_looking_at_every_call() -> None:
    calls = [{"id": f"c{at:05d}", "function": {"name": "f"}} for at in range(16_000)]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": ""} for call in calls]
    asked = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls}]
    request = decoded(CHAT, {"messages": [*asked, *results]})
    with cpu_s_below(2):
        history = CallTree("s").history(request, 5)
    assert len(set(history.meanings[2:])) == 16_000


TOOL: dict[str, Any] = {"name": "f", "description": "d"}
TOOLS: dict[str, Any] = {
    "chat": BASH,
    "responses": {"type": "function", **TOOL},
    "messages": {**TOOL, "input_schema": {"type": "object"}},
    "gemini": {"functionDeclarations": [TOOL]},
}


@in_every_tongue
async def test_tools_without_end_are_refused(tongue: Tongue) -> None:
    tool = TOOLS[tongue.name]
    # Responses refuses two different tools of one name; the same one twice is one.
    tools = [{**tool, "name": f"f{at}"} if tongue.name == "responses" else tool for at in range(MAX_TOOLS + 1)]
    async with rig([say("fine")]) as r:
        heard = await tongue.ask(r, "go", tools=tools)
        assert heard.status == 400 and tongue.refusal(heard.json()) and "2001 tools" in heard.text
        assert (await r.gateway.close_session("s")).counters["refused_request_too_large"] == 1


ECHOED = {"id": "x", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
MANY: dict[str, list[dict[str, Any]]] = {
    "messages": [USER] * (MAX_MESSAGES + 1),
    "tool calls in one turn": [USER, {"role": "assistant", "tool_calls": [ECHOED] * (MAX_CALLS + 1)}, USER],
}


@pytest.mark.parametrize("what", MANY)
async def test_messages_and_calls_without_end_are_refused(what: str) -> None:
    async with rig([say("fine")]) as r:
        heard = await TONGUES["chat"].ask(r, "go", messages=MANY[what])
        assert heard.status == 400 and f"1 {what}, where" in heard.text


async def test_the_loop_goes_on_while_a_large_request_is_worked_on() -> None:
    """Work that ends only when the loop says so."""
    go_on = threading.Event()
    waiting = asyncio.create_task(aside(LARGE_BYTES, lambda: go_on.wait(PATIENCE_S)))
    await asyncio.sleep(0.01)
    go_on.set()
    assert await waiting


async def test_a_large_body_is_read_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    decode = CHAT.decode

    def noted(arrival: Arrival) -> Any:
        read.append(threading.current_thread().name)
        return decode(arrival)

    monkeypatch.setattr(CHAT, "decode", noted)
    async with rig([say("fine")]) as r:
        for size in (10, LARGE_BYTES):
            await TONGUES["chat"].ask(r, "x" * size)
    assert read[0] == threading.main_thread().name != read[1]
