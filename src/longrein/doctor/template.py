"""Check: the chat template shows tools, and what the agent sends next extends what was sampled."""

from __future__ import annotations

import json

import numpy as np

from longrein.doctor.check import About
from longrein.doctor.result import Verdict, combined, failed, passed
from longrein.engines.render import ChatRenderer
from longrein.errors import RenderError
from longrein.rollout.runtime import RendererSource
from longrein.types import I32, Message, Tool

TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "count_horses",
        "description": "Count the horses in a stable.",
        "parameters": {"type": "object", "properties": {"stable": {"type": "string"}}, "required": ["stable"]},
    },
}
ARGUMENTS = {"stable": 'the "north" one'}
ASKED: tuple[Message, ...] = (
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "How many horses are there?"},
)
CALLS: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call_00001",
            "type": "function",
            "function": {"name": "count_horses", "arguments": json.dumps(ARGUMENTS)},
        }
    ],
}
RESULT: Message = {"role": "tool", "tool_call_id": "call_00001", "name": "count_horses", "content": "41 horses, 1 mule"}
SAYS: Message = {"role": "assistant", "content": "There are 41."}
FOLLOWS: Message = {"role": "user", "content": "And how many mules?"}
FIX_TEMPLATE = "give the run a template that shows tools (model.chat_template = path of a Jinja file)"


class Template:
    """Takes a conversation through a tool call, its result and a further question, as the gateway does."""

    about = About(
        name="template", certifies="the chat template shows tools and survives a tool round trip without drift"
    )

    def __init__(self, source: RendererSource) -> None:
        self._source = source

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`."""
        renderer = self._source.load()
        prompt = renderer.render(ASKED, (TOOL,))
        shown = renderer.decode(prompt)
        hidden = [word for word in ("count_horses", "stable") if word not in shown]
        if hidden:
            return failed(
                f"the prompt does not show the tool: no {' and no '.join(map(repr, hidden))} in it", FIX_TEMPLATE
            )
        try:
            said = renderer.encode_reply(CALLS)
        except RenderError as error:
            return failed(f"it cannot write a tool call: {error}", FIX_TEMPLATE)
        results = _extended(renderer, prompt, said, CALLS, RESULT, "tool")
        more = _extended(renderer, prompt, renderer.encode_reply(SAYS), SAYS, FOLLOWS, "user")
        return combined([_read_again(renderer, prompt, said), results, more])


def _read_again(renderer: ChatRenderer, prompt: I32, said: I32) -> Verdict:
    """What the template writes for a call, the parser reads as that call."""
    calls = renderer.parse(completion=said, prompt=prompt, tools=(TOOL,)).tool_calls
    if [(call.name, json.loads(call.arguments)) for call in calls] != [("count_horses", ARGUMENTS)]:
        return failed(
            f"a tool call as the template writes it is not read as one: {renderer.decode(said)!r}",
            "set model.tool_parser to the parser of this format",
        )
    return passed("tools are shown and calls are read back")


def _extended(renderer: ChatRenderer, prompt: I32, said: I32, reply: Message, new: Message, kind: str) -> Verdict:
    """Prompt, reply and the new message are one stream of tokens, the first two untouched."""
    added = renderer.bridge(prompt=prompt, completion=said, reply=reply, new=(new,), tools=(TOOL,))
    if added is None:
        reason = renderer.bridge_problems.get(kind, "its tokens cannot be proven")
        return failed(
            f"a new {kind} message starts a new branch each time: {reason}",
            "use a template that writes earlier turns the same whatever follows, and ends turns with a special token",
        )
    if new["content"] not in renderer.decode(added):
        return failed(f"the template leaves out the words of a new {kind} message", FIX_TEMPLATE)
    whole = renderer.render((*ASKED, reply, new), (TOOL,))
    same = np.array_equal(whole, np.concatenate([prompt, said, added]))
    drift = "without drift" if same else "(rendered anew it would differ: the gateway never does that)"
    return passed(f"a {kind} message extends the sampled tokens {drift}")
