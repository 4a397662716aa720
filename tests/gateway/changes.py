"""What agents do to a conversation between two requests, and what must come of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from longrein.engines.scripted import ScriptedEngine
from longrein.gateway import ChatRequest
from longrein.gateway.session import GatewaySession, take
from longrein.types import I32, Message, Tool
from tests.gateway.rig import BASH, renderer

OTHER_TOOL: Tool = {**BASH, "function": {**BASH["function"], "name": "sh"}}
texts = st.text("abc \n", min_size=1, max_size=5).map(lambda text: f"{text}.")
calls = st.lists(
    st.fixed_dictionaries({"command": texts, "wait": st.sampled_from([1, 2.0, None])}), min_size=1, max_size=2
)


class Turn(msgspec.Struct, frozen=True):
    """What the model says, and what the agent adds."""

    thinks: str
    says: str
    arguments: list[dict[str, Any]]
    adds: str
    answers_backwards: bool = False
    """Parallel calls' results come the last one first."""


turns = st.builds(Turn, st.just("") | texts, texts, calls | st.just([]), texts, st.booleans())


def sampled(turn: Turn) -> I32:
    tool_calls = [
        {"id": "x", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for name, arguments in zip(("bash", "read"), turn.arguments, strict=False)
    ]
    said = renderer().encode_reply({"role": "assistant", "content": turn.says, "tool_calls": tool_calls})
    return np.concatenate([renderer().encode(f"<think>{turn.thinks}</think>"), said]) if turn.thinks else said


class Talk:
    """A conversation with its session, as the agent keeps it."""

    def __init__(self, session: GatewaySession, engine: ScriptedEngine, opening: list[Message]) -> None:
        self.session = session
        self.engine = engine
        self.messages = opening
        self.tools: tuple[Tool, ...] = (BASH,)
        self.call_ids: list[int] = []

    async def ask(self, turn: Turn) -> Message:
        self.engine.tell("s", [sampled(turn)])
        request = ChatRequest(messages=tuple(self.messages), tools=self.tools)
        reply = await take(self.session, request)
        self.call_ids.append(len(self.session.trace().calls) - 1)
        return reply.message

    async def go_on(self, turn: Turn) -> None:
        # A copy, as over HTTP.
        reply: Message = json.loads(json.dumps(await self.ask(turn)))
        results = [
            {"role": "tool", "content": f"{number}{turn.adds}", "tool_call_id": call["id"]}
            for number, call in enumerate(reply.get("tool_calls") or [])
        ][:: -1 if turn.answers_backwards else 1]
        self.messages = [*self.messages, reply, *(results or [{"role": "user", "content": turn.adds}])]

    def old(self, *roles: str) -> list[int]:
        """Positions of messages of these roles that are the model's last turn, or before it."""
        last = max(at for at, message in enumerate(self.messages) if message["role"] == "assistant")
        return [at for at, message in enumerate(self.messages[: last + 1]) if message["role"] in roles]

    def edit(self, at: int, **changes: Any) -> None:
        self.messages = [{**m, **changes} if i == at else m for i, m in enumerate(self.messages)]


Draw = Callable[[Any], Any]
SAME = "goes on"
"""What is expected of a harmless change: the next call is the last one's child."""


def nothing(talk: Talk, draw: Draw) -> str:
    return SAME


def trims(talk: Talk, draw: Draw) -> str:
    for at in talk.old("assistant"):
        text = (talk.messages[at]["content"] or "").strip()
        talk.edit(at, content=draw(st.sampled_from([text, f" {text}\n", text or None])))
    return SAME


def writes_arguments_anew(talk: Talk, draw: Draw) -> str:
    for at in talk.old("assistant"):
        for call in talk.messages[at].get("tool_calls", []):
            arguments = json.loads(call["function"]["arguments"])
            as_javascript = {key: int(value) if isinstance(value, float) else value for key, value in arguments.items()}
            text = json.dumps(dict(reversed(as_javascript.items())), indent=draw(st.sampled_from([None, 1])))
            call["function"] = {**call["function"], "arguments": text}
    return SAME


def gives_ids_of_its_own(talk: Talk, draw: Draw) -> str:
    """And writes arguments anew: nothing is left to know a turn by but what it says."""
    writes_arguments_anew(talk, draw)
    names: dict[str, str] = {}
    for at in [at for at, message in enumerate(talk.messages) if message["role"] in ("assistant", "tool")]:
        message = talk.messages[at]
        for call in message.get("tool_calls", []):
            call["id"] = names.setdefault(call["id"], f"own{len(names)}")
        if message["role"] == "tool":
            talk.edit(at, tool_call_id=names.get(message["tool_call_id"], "lost"))
    return SAME


def forgets_thoughts(talk: Talk, draw: Draw) -> str:
    for at in talk.old("assistant"):
        thought = talk.messages[at].get("reasoning_content", "")
        talk.edit(at, reasoning_content=draw(st.sampled_from(["", f" {thought}\n", thought, f"{thought}\n{thought}"])))
    return SAME


def drops_words_beside_calls(talk: Talk, draw: Draw) -> str:
    for at in talk.old("assistant"):
        if talk.messages[at].get("tool_calls"):
            talk.edit(at, content=draw(st.sampled_from([None, ""])))
    return SAME


def repairs_arguments(talk: Talk, draw: Draw) -> str:
    for at in talk.old("assistant"):
        for call in talk.messages[at].get("tool_calls", []):
            call["function"] = draw(st.sampled_from([{"name": "invalid", "arguments": "{}"}, call["function"]]))
    return SAME


def reminds_at_the_end(talk: Talk, draw: Draw) -> str:
    if draw(st.booleans()):
        talk.edit(len(talk.messages) - 1, content=talk.messages[-1]["content"] + "\nremember")
    else:
        talk.messages = [*talk.messages, {"role": "user", "content": "remember"}]
    return SAME


def answers_out_of_order(talk: Talk, draw: Draw) -> str:
    """Parallel calls' results come as they are ready, and some not at all."""
    end = talk.old("assistant")[-1] + 1
    lead, results = talk.messages[:end], talk.messages[end:]
    shown = draw(st.permutations(results))
    talk.messages = [*lead, *shown[: draw(st.integers(1, len(shown)))]]
    return SAME


def reminds_in_the_past(talk: Talk, draw: Draw) -> str:
    at = draw(st.sampled_from(talk.old("user", "tool")))
    if draw(st.booleans()):
        talk.edit(at, content=talk.messages[at]["content"] + "\nremember")
    else:
        talk.messages = [*talk.messages[: at + 1], {"role": "user", "content": "remember"}, *talk.messages[at + 1 :]]
    return "history_changed"


def rewrites_the_system_prompt(talk: Talk, draw: Draw) -> str:
    rest = [message for message in talk.messages if message["role"] != "system"]
    dropped = len(rest) < len(talk.messages) and draw(st.booleans())
    talk.messages = rest if dropped else [{"role": "system", "content": "another"}, *rest]
    return "system_changed"


def rewrites_a_turn(talk: Talk, draw: Draw) -> str:
    at = draw(st.sampled_from(talk.old("assistant")))
    talk.edit(at, content=(talk.messages[at]["content"] or "") + "Z")
    return "history_changed"


def rewrites_a_thought(talk: Talk, draw: Draw) -> str:
    at = draw(st.sampled_from(talk.old("assistant")))
    talk.edit(at, reasoning_content=talk.messages[at].get("reasoning_content", "") + "Z")
    return "history_changed"


def forgets_a_message(talk: Talk, draw: Draw) -> str:
    at = draw(st.sampled_from(talk.old("user", "tool", "assistant")[:-1] or talk.old("user")))
    talk.messages = [*talk.messages[:at], *talk.messages[at + 1 :]]
    return "history_changed"


def swaps_two_messages(talk: Talk, draw: Draw) -> str:
    old = talk.old("user", "tool", "assistant")
    pairs = [(i, j) for i in old for j in old if i < j and said(talk.messages[i]) != said(talk.messages[j])]
    if not pairs:
        return nothing(talk, draw)
    i, j = draw(st.sampled_from(pairs))
    first, second = talk.messages[i], talk.messages[j]
    talk.messages = [second if n == i else first if n == j else m for n, m in enumerate(talk.messages)]
    return "history_changed"


def said(message: Message) -> object:
    functions = [call["function"] for call in message.get("tool_calls") or []]
    return (message["role"], (message["content"] or "").strip(), functions)


def confuses_results(talk: Talk, draw: Draw) -> str:
    """Parallel calls' results are given to each other's calls, by their ids alone."""
    old = talk.old("tool")
    pairs = [(i, j) for i, j in pairwise(old) if j == i + 1]
    if not pairs:
        return nothing(talk, draw)
    i, j = draw(st.sampled_from(pairs))
    first, second = talk.messages[i]["tool_call_id"], talk.messages[j]["tool_call_id"]
    talk.edit(i, tool_call_id=second)
    talk.edit(j, tool_call_id=first)
    return "history_changed"


def changes_tools(talk: Talk, draw: Draw) -> str:
    talk.tools = draw(st.sampled_from([(), (OTHER_TOOL,), (BASH, OTHER_TOOL)]))
    return "tools_changed"


def drops_the_last_turn(talk: Talk, draw: Draw) -> str:
    """As mini-swe-agent does with what it cannot read."""
    last = talk.old("assistant")[-1]
    talk.messages = [*talk.messages[:last], {"role": "user", "content": "what?"}]
    talk.call_ids.pop()
    return SAME if talk.call_ids else "history_changed"


CHANGES = [
    answers_out_of_order,
    *(nothing, trims, writes_arguments_anew, gives_ids_of_its_own, forgets_thoughts, drops_words_beside_calls),
    *(repairs_arguments, reminds_at_the_end, reminds_in_the_past, rewrites_the_system_prompt, rewrites_a_turn),
    *(rewrites_a_thought, forgets_a_message, swaps_two_messages, confuses_results, changes_tools, drops_the_last_turn),
]
