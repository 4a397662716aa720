"""Gemini's tool declarations in OpenAI form."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from longrein.gateway.dialects.gemini.contents import bad
from longrein.gateway.dialects.gemini.names import camel
from longrein.types import Tool

DECLARATIONS = "functionDeclarations"
_OF_SCHEMAS = ("items", "additionalProperties")
_LIST_OF_SCHEMAS = ("anyOf", "prefixItems")
_MAP_OF_SCHEMAS = ("properties", "defs", "$defs")


class Declaration(msgspec.Struct, frozen=True, rename="camel"):
    """A function. ``parameters`` is in Google's own schema language, ``parametersJsonSchema`` in JSON Schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None


def read_tools(raw_tools: list[dict[str, Any]]) -> tuple[Tool, ...]:
    """Every declared function.

    Raises:
        GatewayRequestError: a tool that Google runs itself, such as ``googleSearch``.
        msgspec.ValidationError: a wrong type.
    """
    tools: list[Tool] = []
    for raw in map(camel, raw_tools):
        if hosted := [name for name, value in raw.items() if name != DECLARATIONS and value is not None]:
            raise bad(f"unsupported tool: {', '.join(hosted)}; only {DECLARATIONS} are")
        declarations = msgspec.convert(raw.get(DECLARATIONS) or [], list[dict[str, Any]])
        tools += [_tool(msgspec.convert(camel(declaration), Declaration)) for declaration in declarations]
    return tuple(tools)


def _tool(declaration: Declaration) -> Tool:
    parameters = declaration.parameters_json_schema
    if parameters is None:
        parameters = json_schema(declaration.parameters or {"type": "object", "properties": {}})
    function = {"name": declaration.name, "description": declaration.description or "", "parameters": parameters}
    return {"type": "function", "function": function}


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Google's schema with the type names of JSON Schema: ``OBJECT`` -> ``object``, wherever a schema stands."""
    return {name: _converted(name, value) for name, value in schema.items()}


def _converted(name: str, value: Any) -> Any:
    match value:
        case str() if name == "type":
            return value.lower()
        case dict() if name in _OF_SCHEMAS:
            return json_schema(cast("dict[str, Any]", value))
        case dict() if name in _MAP_OF_SCHEMAS:
            return {key: _schema_or_not(item) for key, item in cast("dict[str, Any]", value).items()}
        case list() if name in _LIST_OF_SCHEMAS:
            return [_schema_or_not(item) for item in cast("list[Any]", value)]
        case _:
            return value


def _schema_or_not(value: Any) -> Any:
    return json_schema(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
