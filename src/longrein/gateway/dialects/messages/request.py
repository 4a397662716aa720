"""What Anthropic clients send, read into messages and tools of OpenAI form.

Grouping says nothing there: text blocks of one message, and messages of one role in a row, are one turn. So a client
may regroup or mark its blocks (``cache_control``) from request to request, and the conversation reads the same.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar, cast

import msgspec

from longrein.errors import GatewayRequestError
from longrein.gateway.dialects.fold import folded
from longrein.types import Message, Tool

_T = TypeVar("_T", bound=msgspec.Struct)

UNPARSED = "__unparsedToolInput"
"""Under this name Claude Code keeps tool input that was no JSON object, as ``{"raw": ..., "len": ...}``."""
EMPTY_FAILURE = "The tool failed and said nothing."


class TextBlock(msgspec.Struct, frozen=True):
    """Text, of whatever role."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True):
    """A thought that is echoed. Its signature is ours (or somebody else's) and proves nothing we need."""

    thinking: str


class RedactedThinkingBlock(msgspec.Struct, frozen=True):
    """A thought of another model that nobody can read."""

    data: str


class ToolUseBlock(msgspec.Struct, frozen=True):
    """A tool call that is echoed."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(msgspec.Struct, frozen=True):
    """What a tool said."""

    tool_use_id: str
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock
Content = str | list[dict[str, Any]] | None

_BLOCKS: dict[str, dict[str, type[Block]]] = {
    "system": {"text": TextBlock},
    "user": {"text": TextBlock, "tool_result": ToolResultBlock},
    "assistant": {
        "text": TextBlock,
        "thinking": ThinkingBlock,
        "redacted_thinking": RedactedThinkingBlock,
        "tool_use": ToolUseBlock,
    },
}
"""Which blocks a message may hold, by its role."""


class MessageIn(msgspec.Struct, frozen=True):
    """A message as it comes in."""

    role: Literal["system", "user", "assistant"]
    content: Content = None


class CustomTool(msgspec.Struct, frozen=True):
    """A tool as it comes in. Those that Anthropic defines have another type and no schema."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None


class MessagesBody(msgspec.Struct, frozen=True):
    """The fields that are read with a type; the rest is looked at by name."""

    messages: list[MessageIn]
    system: Content = None
    tools: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    output_config: dict[str, Any] | None = None


def bad_request(message: str) -> GatewayRequestError:
    """A 400."""
    return GatewayRequestError(message, status=400, code="invalid_request")


def conversation(body: MessagesBody) -> tuple[Message, ...]:
    """The system prompt and all messages, one a turn.

    Raises:
        GatewayRequestError: a block that is malformed, unsupported or not for its role.
    """
    prompt = [MessageIn(role="system", content=body.system)] if body.system else []
    turns = _Turns()
    for message in (*prompt, *body.messages):
        for block in _blocks(message):
            turns.add(message.role, block)
    return folded(turns.messages())


def tool(raw: dict[str, Any]) -> Tool:
    """A tool. Raises :class:`GatewayRequestError` for one that is not described by a schema."""
    kind = raw.get("type") or "custom"
    if kind != "custom":
        raise bad_request(f"unsupported tool type {_shown(kind)}: only tools with an input_schema of their own are")
    custom = _convert(raw, CustomTool, "tool")
    function = {
        "name": custom.name,
        "description": custom.description or "",
        "parameters": custom.input_schema or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


class _Turn:
    """One message in the making, of any number of blocks."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[dict[str, Any]] = []

    def message(self) -> Message:
        message: Message = {"role": self.role, "content": _lines(self.texts)}
        if thoughts := _lines(self.thoughts):
            message["reasoning_content"] = thoughts
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class _Turns:
    """A conversation in the making. Tool results stand on their own, in the order they came."""

    def __init__(self) -> None:
        self._turns: list[_Turn | Message] = []

    def add(self, role: str, block: Block) -> None:
        match block:
            case TextBlock():
                self._turn(role).texts.append(block.text)
            case ThinkingBlock():
                self._turn(role).thoughts.append(block.thinking)
            case RedactedThinkingBlock():
                self._turn(role)
            case ToolUseBlock():
                self._turn(role).calls.append(_call(block))
            case ToolResultBlock():
                result = {"role": "tool", "content": _result(block), "tool_call_id": block.tool_use_id}
                self._turns.append(result)

    def messages(self) -> tuple[Message, ...]:
        return tuple(turn.message() if isinstance(turn, _Turn) else turn for turn in self._turns)

    def _turn(self, role: str) -> _Turn:
        last = self._turns[-1] if self._turns else None
        if isinstance(last, _Turn) and last.role == role:
            return last
        turn = _Turn(role)
        self._turns.append(turn)
        return turn


def _blocks(message: MessageIn) -> list[Block]:
    if not isinstance(message.content, list):
        return [TextBlock(text=message.content or "")]
    return [_block(raw, message.role) for raw in message.content] or [TextBlock(text="")]


def _block(raw: dict[str, Any], role: str) -> Block:
    known = _BLOCKS[role]
    kind = raw.get("type")
    if not isinstance(kind, str) or kind not in known:
        raise bad_request(
            f"unsupported content block {_shown(kind)} in a {role} message: only {', '.join(known)} can be used there"
        )
    return _convert(raw, known[kind], f"content block of type {kind!r}")


def _call(block: ToolUseBlock) -> dict[str, Any]:
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": _arguments(block.input)}}


def _arguments(given: dict[str, Any]) -> str:
    """As text. What was no JSON object when we said it comes back as we said it."""
    unparsed: Any = given.get(UNPARSED) if len(given) == 1 else None
    if isinstance(unparsed, dict):
        raw: Any = cast("dict[str, Any]", unparsed).get("raw")
        if isinstance(raw, str):
            return raw
    return msgspec.json.encode(given).decode()


def _result(block: ToolResultBlock) -> str:
    content = block.content or ""
    if isinstance(content, list):
        content = _lines([_result_text(raw) for raw in content])
    return content or (EMPTY_FAILURE if block.is_error else "")


def _result_text(raw: dict[str, Any]) -> str:
    if raw.get("type") != "text":
        raise bad_request(f"unsupported content block {_shown(raw.get('type'))} in a tool_result: only text can be")
    return _convert(raw, TextBlock, "content block of type 'text'").text


def _lines(texts: list[str]) -> str:
    return "\n".join(text for text in texts if text)


def _convert(raw: dict[str, Any], to: type[_T], what: str) -> _T:
    try:
        return msgspec.convert(raw, to)
    except msgspec.ValidationError as error:
        raise bad_request(f"a {what} is malformed: {error}") from error


def _shown(kind: object) -> str:
    return repr(kind)[:60]
