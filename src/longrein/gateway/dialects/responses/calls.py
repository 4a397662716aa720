"""How a call to each kind of tool is written in the Responses dialect, and how its echo is read."""

from __future__ import annotations

import secrets
from typing import Any, Protocol

import msgspec

from longrein.types import Tool


class OutputItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a reply."""

    begun: dict[str, Any]
    """As ``response.output_item.added`` shows it."""
    steps: tuple[dict[str, Any], ...]
    """The events between, without their numbers."""
    whole: dict[str, Any]


class CallForm(Protocol):
    """One tool: how the model is told of it and how calls to it are written."""

    @property
    def name(self) -> str:
        """What the model calls it."""
        ...

    def tool(self) -> Tool:
        """The function that the model is offered."""
        ...

    def write(self, call_id: str, arguments: str, status: str) -> OutputItem:
        """A call, from the arguments that the model wrote."""
        ...


def full_name(namespace: str | None, name: str) -> str:
    """The one name that the model knows a tool by, whichever tools stand beside it."""
    return f"{namespace}__{name}" if namespace else name


def new_id(kind: str) -> str:
    """An id for an item."""
    return f"{kind}_{secrets.token_hex(12)}"


class FunctionForm(msgspec.Struct, frozen=True, kw_only=True):
    """A function, alone or in a namespace; see :class:`CallForm`."""

    own_name: str
    namespace: str | None = None
    description: str = ""
    parameters: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """The full name."""
        return full_name(self.namespace, self.own_name)

    def tool(self) -> Tool:
        """The same function, under its full name."""
        return _function(self.name, self.description, self.parameters or {"type": "object", "properties": {}})

    def write(self, call_id: str, arguments: str, status: str) -> OutputItem:
        """A ``function_call``."""
        item_id = new_id("fc")
        whole = {"type": "function_call", "id": item_id, "call_id": call_id, "name": self.own_name}
        whole |= {"arguments": arguments, "status": status}
        if self.namespace:
            whole["namespace"] = self.namespace
        kind = "response.function_call_arguments"
        steps = (
            {"type": f"{kind}.delta", "item_id": item_id, "delta": arguments},
            {"type": f"{kind}.done", "item_id": item_id, "name": self.own_name, "arguments": arguments},
        )
        return OutputItem(begun={**whole, "arguments": "", "status": "in_progress"}, steps=steps, whole=whole)


class CustomForm(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that takes free text: offered as a function of one string, ``input``; see :class:`CallForm`."""

    own_name: str
    namespace: str | None = None
    description: str = ""
    grammar: str = ""
    """What the text should look like. Shown to the model, not enforced."""

    @property
    def name(self) -> str:
        """The full name."""
        return full_name(self.namespace, self.own_name)

    def tool(self) -> Tool:
        """A function of one string."""
        about = f"{self.description}\n\nGrammar of `input`:\n{self.grammar}" if self.grammar else self.description
        properties = {"input": {"type": "string"}}
        return _function(self.name, about, {"type": "object", "properties": properties, "required": ["input"]})

    def write(self, call_id: str, arguments: str, status: str) -> OutputItem:
        """A ``custom_tool_call``; arguments that hold no ``input`` become the input themselves."""
        text = _custom_input(arguments)
        item_id = new_id("ctc")
        whole = {"type": "custom_tool_call", "id": item_id, "call_id": call_id, "name": self.own_name}
        whole |= {"input": text, "status": status}
        if self.namespace:
            whole["namespace"] = self.namespace
        kind = "response.custom_tool_call_input"
        steps = (
            {"type": f"{kind}.delta", "item_id": item_id, "delta": text},
            {"type": f"{kind}.done", "item_id": item_id, "input": text},
        )
        return OutputItem(begun={**whole, "input": "", "status": "in_progress"}, steps=steps, whole=whole)


class ShellAction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a ``local_shell`` call does, as arguments and as action."""

    command: list[str]
    env: dict[str, str] | None = None
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class LocalShellForm(msgspec.Struct, frozen=True):
    """The built-in ``local_shell``, which the agent runs; see :class:`CallForm`."""

    name = "local_shell"

    def tool(self) -> Tool:
        """A function with the fields of the action."""
        properties = {
            "command": {"type": "array", "items": {"type": "string"}, "description": "The program and its arguments"},
            "working_directory": {"type": "string"},
            "timeout_ms": {"type": "integer"},
            "env": {"type": "object", "additionalProperties": {"type": "string"}},
        }
        parameters = {"type": "object", "properties": properties, "required": ["command"]}
        return _function(self.name, "Run a command in the local shell.", parameters)

    def write(self, call_id: str, arguments: str, status: str) -> OutputItem:
        """A ``local_shell_call``; an ordinary call, for the agent to refuse, where the arguments are none of one."""
        try:
            action = msgspec.json.decode(arguments, type=ShellAction)
        except (msgspec.DecodeError, RecursionError):
            return FunctionForm(own_name=self.name).write(call_id, arguments, status)
        shown: dict[str, Any] = {"type": "exec", "env": {}, **msgspec.to_builtins(action)}
        whole: dict[str, Any] = {
            "type": "local_shell_call",
            "id": new_id("lsh"),
            "call_id": call_id,
            "action": shown,
            "status": status,
        }
        return OutputItem(begun={**whole, "status": "in_progress"}, steps=(), whole=whole)


def custom_arguments(text: str) -> str:
    """The arguments of the function that stands for a custom tool."""
    return msgspec.json.encode({"input": text}).decode()


def shell_arguments(action: ShellAction) -> str:
    """The arguments of the function that stands for ``local_shell``."""
    # What the agent fills in of its own is left out.
    said = msgspec.structs.replace(action, env=action.env or None)
    return msgspec.json.encode(said).decode()


def _custom_input(arguments: str) -> str:
    try:
        return msgspec.json.decode(arguments, type=_CustomArguments).input
    except (msgspec.DecodeError, RecursionError):
        return arguments


class _CustomArguments(msgspec.Struct, forbid_unknown_fields=True):
    input: str


def _function(name: str, description: str, parameters: dict[str, Any]) -> Tool:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
