"""Responses input items as chat messages.

Items are smaller than messages: a thought, a text and calls that follow each other are one assistant message.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec

from longrein.errors import GatewayRequestError
from longrein.gateway.dialects.responses.calls import ShellAction, custom_arguments, full_name, shell_arguments
from longrein.gateway.dialects.responses.reasoning import ReasoningItem, reasoning_of
from longrein.types import Message

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TEXT_PARTS = ("input_text", "output_text", "text", "refusal")


class MessageItem(msgspec.Struct, frozen=True):
    """A message; the only item whose type may be missing."""

    role: str
    content: str | list[dict[str, Any]]


class FunctionCallItem(msgspec.Struct, frozen=True):
    """An echoed call of a function."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class CustomCallItem(msgspec.Struct, frozen=True):
    """An echoed call of a custom tool."""

    call_id: str
    name: str
    input: str
    namespace: str | None = None


class ShellCallItem(msgspec.Struct, frozen=True):
    """An echoed call of ``local_shell``."""

    call_id: str
    action: ShellAction


class ResultItem(msgspec.Struct, frozen=True):
    """What a tool gave back."""

    output: str | list[dict[str, Any]]
    call_id: str | None = None
    id: str | None = None
    """OpenAI names the call here in a ``local_shell_call_output``."""


def read_input(instructions: str | None, items: str | list[dict[str, Any]]) -> tuple[Message, ...]:
    """The conversation, normalised.

    Raises:
        GatewayRequestError: a malformed or unsupported item, by its index.
    """
    conversation = _Conversation()
    if instructions:
        conversation.say("system", instructions)
    if isinstance(items, str):
        conversation.say("user", items)
        return conversation.messages()
    for index, item in enumerate(items):
        kind = item.get("type", "message")
        read = conversation.readers.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise _bad(f"input[{index}]: unsupported item type; use one of: {', '.join(conversation.readers)}")
        try:
            read(item)
        except msgspec.ValidationError as error:
            raise _bad(f"input[{index}] is malformed: {error}") from error
        except GatewayRequestError as error:
            raise _bad(f"input[{index}]: {error}") from error
    return conversation.messages()


class _Conversation:
    """Collects items into messages."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self.readers: dict[str, Callable[[dict[str, Any]], None]] = {
            "message": self._message,
            "reasoning": self._reasoning,
            "function_call": self._function_call,
            "custom_tool_call": self._custom_call,
            "local_shell_call": self._shell_call,
            "function_call_output": self._output,
            "custom_tool_call_output": self._output,
            "local_shell_call_output": self._output,
        }

    def messages(self) -> tuple[Message, ...]:
        """What was said, without the beginnings of answers that were cut off.

        When a stream is cut, Codex keeps the items that it had got whole and asks again with them in the input.
        """
        said = self._messages[: _end(self._messages)]
        kept = [message for message, following in pairwise(said) if not _is_begun(message, following)]
        kept += [message for message in said[-1:] if not _is_thought(message)]
        return tuple(kept)

    def say(self, role: str, text: str) -> None:
        """A message that is not the assistant's."""
        self._messages.append({"role": role, "content": text})

    def _message(self, item: dict[str, Any]) -> None:
        message = msgspec.convert(item, MessageItem)
        role = ROLES.get(message.role)
        if role is None:
            raise _bad(f"unsupported role; use one of: {', '.join(ROLES)}")
        if role == "assistant":
            self._turn_without("content")["content"] = _text(message.content)
        else:
            self.say(role, _text(message.content))

    def _reasoning(self, item: dict[str, Any]) -> None:
        reasoning = reasoning_of(msgspec.convert(item, ReasoningItem))
        turn = self._turn_without("reasoning_content", "content", "tool_calls")
        if reasoning:
            turn["reasoning_content"] = reasoning

    def _function_call(self, item: dict[str, Any]) -> None:
        call = msgspec.convert(item, FunctionCallItem)
        self._call(call.call_id, full_name(call.namespace, call.name), call.arguments)

    def _custom_call(self, item: dict[str, Any]) -> None:
        call = msgspec.convert(item, CustomCallItem)
        self._call(call.call_id, full_name(call.namespace, call.name), custom_arguments(call.input))

    def _shell_call(self, item: dict[str, Any]) -> None:
        call = msgspec.convert(item, ShellCallItem)
        self._call(call.call_id, "local_shell", shell_arguments(call.action))

    def _call(self, call_id: str, name: str, arguments: str) -> None:
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        calls = self._turn_without().setdefault("tool_calls", [])
        if call not in calls:
            # The very same call again: of an answer that came twice, as its stream was cut at the end.
            calls.append(call)

    def _output(self, item: dict[str, Any]) -> None:
        result = msgspec.convert(item, ResultItem)
        call_id = result.call_id or result.id
        if call_id is None:
            raise _bad("call_id is missing")
        self._messages.append({"role": "tool", "content": _text(result.output), "tool_call_id": call_id})

    def _turn_without(self, *taken: str) -> Message:
        """The assistant message under way, or a new one where that says one of ``taken`` already."""
        last = self._messages[-1] if self._messages else None
        if last is None or last["role"] != "assistant" or any(last.get(key) for key in taken):
            last = {"role": "assistant", "content": ""}
            self._messages.append(last)
        return last


def _end(messages: list[Message]) -> int:
    """Where the input ends, counting what it ends with once: an answer that was cut off more than once."""
    end = len(messages)
    while end > 1 and messages[end - 1] == messages[end - 2] and messages[end - 1]["role"] == "assistant":
        end -= 1
    return end


def _is_begun(message: Message, following: Message) -> bool:
    """Whether a message is the beginning of an answer that was cut off before it came again, whole.

    Mere words that come again just so are no beginning: they may have been said twice, as no thought or call can be.
    """
    if message["role"] != "assistant" or following["role"] != "assistant":
        return False
    calls: list[dict[str, Any]] = message.get("tool_calls") or []
    return _is_thought(message) or (
        message.get("reasoning_content") == following.get("reasoning_content")
        and message["content"] in ("", following["content"])
        and calls == (following.get("tool_calls") or [])[: len(calls)]
        and (message != following or bool(message.get("reasoning_content") or calls))
    )


def _is_thought(message: Message) -> bool:
    return message["role"] == "assistant" and not message["content"] and not message.get("tool_calls")


def _text(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content:
        text = part.get("text", part.get("refusal"))
        if part.get("type") not in TEXT_PARTS or not isinstance(text, str):
            raise _bad("unsupported content part: only text is, not images, audio or files")
        texts.append(text)
    return "\n".join(texts)


def _bad(message: str) -> GatewayRequestError:
    return GatewayRequestError(message, status=400, code="invalid_request")
