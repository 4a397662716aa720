"""What agents send: conversations of a given number of tokens, and what the model answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from longrein.engines.render import ChatRenderer

RESULT_TOKENS = 150
"""Tokens of one tool result."""
VARIANTS = 16
"""Different completions of one payload, said in turn."""
SOURCES = ("argparse", "ast", "inspect", "tarfile", "typing", "subprocess", "logging/__init__", "asyncio/base_events")
SOURCES += ("pathlib", "zipfile", "statistics", "unittest/mock", "email/message", "http/client", "datetime", "turtle")


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of prompt and completion."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def name(self) -> str:
        return f"{self.prompt_tokens // 1000}k/{self.completion_tokens}"

    @property
    def step_tokens(self) -> int:
        """By how much a conversation grows from call to call."""
        return self.completion_tokens + RESULT_TOKENS


PAYLOADS = (
    Payload(prompt_tokens=8000, completion_tokens=200),
    Payload(prompt_tokens=8000, completion_tokens=2000),
    Payload(prompt_tokens=64000, completion_tokens=200),
    Payload(prompt_tokens=64000, completion_tokens=2000),
)


class Corpus:
    """Text of the kind that coding agents read, by the token: the standard library."""

    def __init__(self, renderer: ChatRenderer) -> None:
        folder = Path(json.__file__).parent.parent
        text = "\n".join((folder / f"{name}.py").read_text(encoding="utf-8") for name in SOURCES)
        self._renderer = renderer
        self._ids = renderer.encode(text.encode("ascii", "replace").decode())
        self._at = 0

    def take(self, tokens: int) -> str:
        """The next text of about that many tokens; from the start again, shifted, at the end."""
        if self._at + tokens > self._ids.size:
            self._at = (self._at + tokens) % 97
        begin, self._at = self._at, self._at + tokens
        return self._renderer.decode(self._ids[begin : self._at])


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """One completion as ids and as the message that it says."""

    token_ids: list[int]
    content: str
    arguments: str


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """The first request of a conversation."""

    tools: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    prompt_tokens: int


class Speaker:
    """Makes roots and completions for one tokenizer and template."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self._corpus = Corpus(renderer)
        self._tools = [self._tool(index) for index in range(10)]

    def result(self) -> str:
        """A new tool result."""
        return self._corpus.take(RESULT_TOKENS - 8)

    def completions(self, tokens: int) -> list[Said]:
        """``VARIANTS`` completions of about ``tokens`` tokens: a sentence and a call that writes a file."""
        return [self._said(tokens) for _ in range(VARIANTS)]

    def root(self, payload: Payload, prompt_tokens: int) -> Root:
        """A conversation of about ``prompt_tokens`` tokens, the early turns of which are over."""
        system = {"role": "system", "content": self._corpus.take(800)}
        user = {"role": "user", "content": self._corpus.take(300)}
        messages: list[dict[str, Any]] = [system, user]
        missing = prompt_tokens - self._size(messages)
        turn = 0
        while missing > payload.step_tokens:
            messages += self._turn(turn, payload.completion_tokens - 40, RESULT_TOKENS - 8)
            missing -= payload.step_tokens
            turn += 1
        for _ in range(2):
            missing = prompt_tokens - self._size(messages)
            if missing > 80:
                messages += self._turn(turn, 20, missing - 60)
                turn += 1
        return Root(tools=self._tools, messages=messages, prompt_tokens=self._size(messages))

    def _size(self, messages: list[dict[str, Any]]) -> int:
        return int(self._renderer.render(tuple(messages), tuple(self._tools)).size)

    def _turn(self, index: int, said_tokens: int, result_tokens: int) -> list[dict[str, Any]]:
        function = {"name": "write", "arguments": _arguments(f"src/part_{index}.py", self._corpus.take(said_tokens))}
        call = {"id": f"call_{index:05d}", "type": "function", "function": function}
        result = {"role": "tool", "tool_call_id": call["id"], "content": self._corpus.take(result_tokens)}
        return [{"role": "assistant", "content": f"Part {index} comes next.", "tool_calls": [call]}, result]

    def _said(self, tokens: int) -> Said:
        wanted = tokens - 40
        text = self._corpus.take(2 * tokens)
        while True:
            body = self._renderer.decode(self._renderer.encode(text)[:wanted])
            said = self._as_said(body)
            over = len(said.token_ids) - tokens
            if over <= 0:
                return said
            wanted -= over

    def _as_said(self, body: str) -> Said:
        content, arguments = "I shall write this down.", _arguments("src/notes.py", body)
        function = {"name": "write", "arguments": arguments}
        call = {"id": "call00000", "type": "function", "function": function}
        ids = self._renderer.encode_reply({"role": "assistant", "content": content, "tool_calls": [call]})
        return Said(token_ids=ids.tolist(), content=content, arguments=arguments)

    def _tool(self, index: int) -> dict[str, Any]:
        names = ("write", "read", "edit", "bash", "grep", "glob", "fetch", "todo", "task", "search")
        text = {"type": "string", "description": self._corpus.take(12)}
        parameters = {
            "type": "object",
            "properties": {"path": text, "content": text, "timeout_s": {"type": "integer"}},
            "required": ["path", "content"],
            "additionalProperties": False,
        }
        function = {"name": names[index], "description": self._corpus.take(60), "parameters": parameters}
        return {"type": "function", "function": function}


def _arguments(path: str, content: str) -> str:
    return json.dumps({"path": path, "content": content})
