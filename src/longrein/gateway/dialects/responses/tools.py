"""The tools of a Responses request: what the model is offered, and what it is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from longrein.errors import GatewayRequestError
from longrein.gateway.dialects.responses.calls import CallForm, CustomForm, FunctionForm, LocalShellForm


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of one request."""

    forms: dict[str, CallForm]
    """By the name that the model knows, in order."""
    hosted: tuple[str, ...] = ()
    """Types of tools that would run on OpenAI's side. The model never hears of them."""


class FunctionTool(msgspec.Struct, frozen=True):
    """A function as it comes in."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Grammar(msgspec.Struct, frozen=True):
    """The ``format`` of a custom tool."""

    definition: str | None = None


class CustomTool(msgspec.Struct, frozen=True):
    """A custom tool as it comes in."""

    name: str
    description: str | None = None
    format: Grammar | None = None


class NamespaceTool(msgspec.Struct, frozen=True):
    """A named group of tools."""

    name: str
    tools: list[dict[str, Any]]


class NamedChoice(msgspec.Struct, frozen=True):
    """A ``tool_choice`` that is an object."""

    type: str


AGENTS_TOOLS = ("function", "custom", "local_shell", "namespace")
"""Types of tools that the agent runs itself."""
AGENTS_CHOICES = ("function", "custom", "local_shell", "allowed_tools")


def read_tools(tools: list[dict[str, Any]]) -> Offer:
    """Namespaces are flattened.

    Raises:
        GatewayRequestError: a malformed tool, or two tools that the model could not tell apart.
    """
    forms: dict[str, CallForm] = {}
    hosted: list[str] = []
    for index, tool in enumerate(tools):
        try:
            for form in _forms(tool, None):
                if forms.setdefault(form.name, form) != form:
                    raise _bad(f"tools[{index}]: a second, different tool is named {form.name!r}")
        except msgspec.ValidationError as error:
            raise _bad(f"tools[{index}] is malformed: {error}") from error
        kind = tool["type"]
        if kind not in AGENTS_TOOLS:
            hosted.append(kind)
    return Offer(forms=forms, hosted=tuple(hosted))


def check_choice(choice: str | dict[str, Any] | None) -> None:
    """Raises :class:`GatewayRequestError` where a hosted tool is forced."""
    if not isinstance(choice, dict):
        return
    try:
        kind = msgspec.convert(choice, NamedChoice).type
    except msgspec.ValidationError as error:
        raise _bad(f"tool_choice is malformed: {error}") from error
    if kind not in AGENTS_CHOICES:
        raise _bad("unsupported tool_choice: it forces a tool that this server does not run; only the agent's own are")


def _forms(tool: dict[str, Any], namespace: str | None) -> Iterator[CallForm]:
    kind = msgspec.convert(tool, NamedChoice).type
    if kind == "function":
        function = msgspec.convert(tool, FunctionTool)
        yield FunctionForm(
            own_name=function.name,
            namespace=namespace,
            description=function.description or "",
            parameters=function.parameters or {},
        )
    elif kind == "custom":
        custom = msgspec.convert(tool, CustomTool)
        grammar = custom.format.definition if custom.format else None
        yield CustomForm(
            own_name=custom.name,
            namespace=namespace,
            description=custom.description or "",
            grammar=grammar or "",
        )
    elif kind == "local_shell" and namespace is None:
        yield LocalShellForm()
    elif kind == "namespace" and namespace is None:
        group = msgspec.convert(tool, NamespaceTool)
        for member in group.tools:
            yield from _forms(member, group.name)


def _bad(message: str) -> GatewayRequestError:
    return GatewayRequestError(message, status=400, code="invalid_request")
