"""Gemini's ``contents`` as messages in OpenAI form."""

from __future__ import annotations

from typing import Any

import msgspec

from longrein.errors import GatewayRequestError
from longrein.gateway.dialects.gemini.names import camel
from longrein.gateway.dialects.gemini.open_calls import OpenCalls
from longrein.gateway.dialects.gemini.signature import signed_id
from longrein.types import Message

ROLES = ("user", "model", "function")
OUTPUT_KEYS = ("output", "result", "content")
"""What agents call the text of a tool's result: Gemini CLI, google-genai's tool runner, the AI SDK."""


class FunctionCall(msgspec.Struct, frozen=True):
    """A tool call echoed by the agent."""

    name: str
    id: str | None = None
    args: dict[str, Any] | None = None


class FunctionResponse(msgspec.Struct, frozen=True):
    """A tool's result. ``parts`` would be media."""

    name: str
    id: str | None = None
    response: dict[str, Any] | None = None
    parts: list[Any] | None = None


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """One part of a content: text, thought, call or result."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: dict[str, Any] | None = None
    function_response: dict[str, Any] | None = None


class Content(msgspec.Struct, frozen=True):
    """One turn."""

    role: str | None = None
    parts: list[dict[str, Any]] | None = None


def system_message(instruction: dict[str, Any]) -> Message:
    """``systemInstruction`` as a message; whatever role it has."""
    content = msgspec.convert(instruction, Content)
    return {"role": "system", "content": "\n".join(_text(_part(raw)) for raw in content.parts or [])}


class Conversation:
    """Reads contents in order.

    Contents of the model that follow each other are one message: streaming clients keep each chunk as a content.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._open = OpenCalls()
        """Of the latest model turn."""
        self._calls = 0

    def add(self, raw: dict[str, Any]) -> None:
        """Read one content.

        Raises:
            GatewayRequestError: an unknown role, or a part that is not supported.
            msgspec.ValidationError: a wrong type.
        """
        content = msgspec.convert(raw, Content)
        role = content.role or "user"
        if role not in ROLES:
            raise bad(f"unsupported role; use one of: {', '.join(ROLES)}")
        parts = [_part(part) for part in content.parts or []]
        if role == "model":
            self._add_model(parts)
        else:
            self._add_user(parts)

    def _add_model(self, parts: list[Part]) -> None:
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
            self._open = OpenCalls()
        message = self.messages[-1]
        for part in parts:
            if part.function_call is not None:
                message.setdefault("tool_calls", []).append(self._call(part.function_call, part.thought_signature))
            elif part.thought:
                message["reasoning_content"] = message.get("reasoning_content", "") + _text(part)
            else:
                message["content"] += _text(part)

    def _call(self, raw: dict[str, Any], signature: str | None) -> dict[str, Any]:
        call = msgspec.convert(raw, FunctionCall)
        # Nine letters and digits, as our own ids, for templates that check.
        call_id = call.id or signed_id(signature or "") or f"u{self._calls:08d}"
        self._calls += 1
        self._open.add(call_id, call.name)
        arguments = msgspec.json.encode(call.args or {}).decode()
        return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}

    def _add_user(self, parts: list[Part]) -> None:
        if not parts:
            raise bad("a content without parts: send at least one part")
        texts: list[str] = []
        for part in parts:
            if part.function_response is None:
                texts.append(_text(part))
                continue
            self._add_text(texts)
            texts = []
            self._add_result(part.function_response)
        self._add_text(texts)

    def _add_text(self, texts: list[str]) -> None:
        if texts:
            self.messages.append({"role": "user", "content": "\n".join(texts)})

    def _add_result(self, raw: dict[str, Any]) -> None:
        result = msgspec.convert(raw, FunctionResponse)
        if result.parts:
            raise bad("unsupported content: only text is, not media in a functionResponse")
        content = _output(result)
        call_id = self._open.answer(result.id, result.name)
        self.messages.append({"role": "tool", "name": result.name, "tool_call_id": call_id, "content": content})


def _part(raw: dict[str, Any]) -> Part:
    part = msgspec.convert(camel(raw), Part)
    held = (part.text, part.thought, part.thought_signature, part.function_call, part.function_response)
    if all(value is None for value in held):
        raise bad(f"unsupported content part: only text and functions are, not {', '.join(raw) or 'an empty one'}")
    return part


def _text(part: Part) -> str:
    if part.function_call is not None or part.function_response is not None:
        raise bad("a functionCall belongs to role model, a functionResponse to role user")
    return part.text or ""


def _output(result: FunctionResponse) -> str:
    """The one text in a result as it is; else compact JSON, so that an ``error`` shows as one."""
    response = result.response or {}
    said = {key: value for key, value in response.items() if key != "name" or value != result.name}
    if len(said) == 1:
        [key], [value] = said.keys(), said.values()
        if key in OUTPUT_KEYS and isinstance(value, str):
            return value
    return msgspec.json.encode(response).decode()


def bad(message: str) -> GatewayRequestError:
    """A request that is malformed or asks for something unsupported."""
    return GatewayRequestError(message, status=400, code="invalid_request")
