"""System messages stand where templates take them, whatever the dialect, and prompts still extend each other."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.engines.render import ChatRenderer
from longrein.engines.scripted import ScriptedEngine, TurnList
from longrein.gateway import Gateway, GatewaySettings
from longrein.gateway.dialects.fold import folded
from longrein.types import Message
from tests import tiny
from tests.gateway.rig import assert_exact, say

LOOP = "{%- for message in messages %}"
STRICT = tiny.CHATML.replace(
    LOOP,
    LOOP
    + "{% if message.role == 'system' and not loop.first %}{{ raise_exception('system comes first') }}{% endif %}"
    + "{% if message.role == 'user' and not loop.first and messages[loop.index0 - 1].role == 'user' %}"
    + "{{ raise_exception('turns must take turns') }}{% endif %}",
)
"""As Qwen3.5's and Gemma's."""


def message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


SYSTEM, USER, ASSISTANT = (message(role, role[0]) for role in ("system", "user", "assistant"))
TOOL: Message = {"role": "tool", "content": "t", "tool_call_id": "c"}
REMINDER = "<system-reminder>\ns\n</system-reminder>"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ((SYSTEM, SYSTEM, USER), (message("system", "s\n\ns"), USER)),
        ((SYSTEM, USER, SYSTEM, USER), (SYSTEM, message("user", f"u\n{REMINDER}\nu"))),
        ((USER, ASSISTANT, SYSTEM, USER), (USER, ASSISTANT, message("user", f"{REMINDER}\nu"))),
        ((USER, ASSISTANT, SYSTEM), (USER, ASSISTANT, message("user", REMINDER))),
        ((USER, ASSISTANT, TOOL, SYSTEM, ASSISTANT), (USER, ASSISTANT, TOOL, message("user", REMINDER), ASSISTANT)),
        # Without a reminder nobody's messages are joined.
        ((USER, USER, ASSISTANT, SYSTEM, USER), (USER, USER, ASSISTANT, message("user", f"{REMINDER}\nu"))),
        ((SYSTEM, message("system", "")), (SYSTEM,)),
        ((USER, message("system", ""), USER), (message("user", "u\nu"),)),
    ],
)
def test_one_system_message_leads_and_others_are_reminders(
    messages: tuple[Message, ...], expected: tuple[Message, ...]
) -> None:
    assert folded(messages) == expected


def test_what_needs_no_folding_is_the_same_messages() -> None:
    messages = (SYSTEM, USER, ASSISTANT, USER)
    assert all(ours is theirs for ours, theirs in zip(folded(messages), messages, strict=True))


CONVERSATIONS = st.lists(
    st.builds(message, st.sampled_from(["system", "user", "assistant", "tool"]), st.text("xyz", max_size=3)),
    min_size=1,
    max_size=10,
)


@settings(deadline=None, max_examples=300)
@given(CONVERSATIONS)
def test_a_folded_conversation_extends_each_of_its_beginnings(conversation: list[Message]) -> None:
    whole = folded(tuple(conversation))
    assert all(m["role"] != "system" for m in whole[1:]) and folded(whole) == whole
    for at, following in enumerate(conversation):
        if following["role"] == "assistant":
            asked = folded(tuple(conversation[:at]))
            assert whole[: len(asked)] == asked
    kept = [m for m in whole if m["role"] in ("assistant", "tool")]
    assert kept == [m for m in conversation if m["role"] in ("assistant", "tool")]
    text = "\n".join(m["content"] for m in whole)
    at = 0
    for m in conversation:
        at = text.index(m["content"], at)


CHAT = "/v1/chat/completions"
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat, two": (CHAT, {"messages": [SYSTEM, message("developer", "d"), USER]}),
    "chat, late": (CHAT, {"messages": [SYSTEM, USER, message("developer", "d"), USER]}),
    "responses, late": ("/v1/responses", {"instructions": "a", "input": [USER, message("developer", "b"), USER]}),
    "messages, late": ("/v1/messages", {"max_tokens": 99, "system": "a", "messages": [USER, SYSTEM, USER]}),
}


@pytest.mark.parametrize(("path", "body"), ASKED.values(), ids=ASKED)
async def test_templates_that_refuse_late_system_messages_take_every_dialect(path: str, body: dict[str, Any]) -> None:
    chat = ChatRenderer.of(tiny.tokenizer(STRICT))
    engine = ScriptedEngine(TurnList(chat, [say("ok"), say("ok")]), vocab_size=chat.vocab_size, context_length=8192)
    gateway = Gateway(engine, chat, GatewaySettings())
    await gateway.start()
    try:
        endpoint = gateway.open_session("s")
        field = "input" if "input" in body else "messages"
        more = [*body[field], message("assistant", "ok"), message("system", "late"), USER]
        async with aiohttp.ClientSession() as http:
            for asked in (body, {**body, field: more}):
                async with http.post(endpoint.base_url + path, json={"model": "m", **asked}) as answer:
                    assert answer.status == 200, await answer.text()
        assert [call.parent_id for call in gateway.trace("s").calls] == [None, 0]
        assert_exact(gateway.trace("s"), engine)
    finally:
        await gateway.close()
