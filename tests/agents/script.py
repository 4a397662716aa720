"""What a scripted model says to a real agent: turns in order, told apart by what the prompt holds."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from longrein.engines.base import EngineRequest
from longrein.engines.render import ChatRenderer
from longrein.engines.scripted import Delay, Entry, Fault
from longrein.errors import EngineRequestError
from longrein.types import I32, Message
from tests import tiny

Turn = Entry | asyncio.Event | Callable[[str], Entry]
"""What is said next, once an event before it has come; a function gets the decoded prompt."""


def say(text: str) -> Message:
    return {"role": "assistant", "content": text}


def call(name: str, arguments: dict[str, Any], text: str = "") -> Message:
    return calls((name, arguments), text=text)


def calls(*named: tuple[str, dict[str, Any]], text: str = "") -> Message:
    """One turn with several tool calls."""
    functions = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in named]
    tool_calls = [{"id": f"x{at}", "type": "function", "function": one} for at, one in enumerate(functions)]
    return {"role": "assistant", "content": text, "tool_calls": tool_calls}


def raw(text: str) -> I32:
    """The ids of a turn that says ``text`` as it stands (broken tool calls, say) and stops."""
    return np.asarray(tiny.tokenizer().encode(text + "<|im_end|>", add_special_tokens=False), dtype=np.int32)


def thinks(thought: str, reply: Message) -> I32:
    """The ids of a turn that thinks before it says ``reply``."""
    return np.concatenate([renderer().encode(f"<think>{thought}</think>"), renderer().encode_reply(reply)])


@cache
def renderer() -> ChatRenderer:
    return ChatRenderer.of(tiny.tokenizer())


class InOrder:
    """Says turns in order; the last one repeats. A request that is cancelled while it waits leaves the turn."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = deque(turns)

    async def next(self, prompt: str) -> I32:
        while self._turns:
            turn = self._turns[0] if len(self._turns) == 1 else self._turns.popleft()
            if isinstance(turn, asyncio.Event):
                await turn.wait()
                continue
            entry = turn(prompt) if callable(turn) else turn
            if isinstance(entry, Fault):
                raise entry.error
            if isinstance(entry, Delay):
                await asyncio.sleep(entry.seconds)
            else:
                return renderer().encode_reply(entry) if isinstance(entry, dict) else entry
        raise EngineRequestError("the script has nothing to say to this prompt")


class ByPrompt:
    """Picks a list of turns by the decoded prompt, so that concurrent conversations can be told apart.

    Args:
        cases: a substring of the prompt, or a predicate on it, with the turns to say; the first case that fits wins.
        default: the turns for every other prompt.
    """

    def __init__(
        self, cases: Sequence[tuple[str | Callable[[str], bool], Sequence[Turn]]], default: Sequence[Turn] = ()
    ) -> None:
        self._cases = [(_predicate(fits), InOrder(turns)) for fits, turns in cases]
        self._default = InOrder(default)

    def tell(self, conversation_id: str, turns: Sequence[Entry]) -> None:
        self._default = InOrder(turns)

    async def reply(self, request: EngineRequest) -> I32:
        prompt = decoded(request)
        turns = next((turns for fits, turns in self._cases if fits(prompt)), self._default)
        return await turns.next(prompt)


def decoded(request: EngineRequest) -> str:
    """The prompt as text."""
    return tiny.tokenizer().decode(request.prompt_ids.tolist())


def _predicate(fits: str | Callable[[str], bool]) -> Callable[[str], bool]:
    return (lambda prompt: fits in prompt) if isinstance(fits, str) else fits
