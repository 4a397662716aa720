"""``docs/openapi.json``, and requests made from it: what it allows, and what it does not."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import msgspec

DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"
TEXTS = (
    *("", "go", "é\u2028\x00", "<|im_end|>", "<tool_call>", "policy", "bash", "call_1", "\U0001f40e" * 3, "x" * 300),
)
JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 1 << 70, 1e308, "", "é" * 9, "assistant"),
    *([], [[]], {}, {"type": "image_url"}),
)
SPLINTERS = (b"\x00", b'"', b"{", b"]", b",", b"\xff", b"\\u0000", b"\\ud800", b"1e999", b"\r\n", b"\r\n\r\n")


@cache
def document() -> dict[str, Any]:
    return json.loads(DOCUMENT.read_text(encoding="utf-8"))


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One route and method."""

    method: str
    path: str
    """With ``{model}`` in it, where the route has one."""
    body: dict[str, Any]
    """The schema of the request's body; empty where there is none."""
    queries: tuple[str, ...]
    refusal: str
    """Name of the error body's schema."""


@cache
def operations() -> tuple[Operation, ...]:
    found: list[Operation] = []
    for path, item in document()["paths"].items():
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {})
            queries = [one for one in operation.get("parameters", []) if one["in"] == "query"]
            found.append(
                Operation(
                    method=method.upper(),
                    path=path,
                    body=content.get("application/json", {}).get("schema", {}),
                    queries=("", *[f"{one['name']}={one['schema'].get('enum', ['true'])[0]}" for one in queries]),
                    refusal=operation["responses"]["default"]["$ref"].rpartition("/")[2],
                )
            )
    return tuple(found)


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with its own ``$ref`` followed."""
    while "$ref" in schema:
        schema = document()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is what a schema says. Fields that it does not name are free, as everywhere in this document."""
    schema = resolved(schema)
    if "anyOf" in schema:
        return any(conforms(value, one) for one in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    match schema.get("type"):
        case "object":
            fields = schema.get("properties", {})
            return (
                isinstance(value, dict)
                and set(schema.get("required", [])) <= set(value)
                and all(conforms(value[name], inner) for name, inner in fields.items() if name in value)
            )
        case "array":
            return (
                isinstance(value, list)
                and schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
                and all(conforms(inner, schema["items"]) for inner in value)
            )
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool) and value >= schema.get("minimum", value)
        case kind:
            types = {"number": int | float, "boolean": bool, "string": str, "null": type(None)}
            return isinstance(value, types[kind])


def operation_of(path: str) -> Operation:
    named = "/".join(["", *path.split("/")[1:3], "{model}:" + path.rpartition(":")[2]])
    return next(one for one in operations() if one.path in (path, named))


class Maker:
    """Makes values of a schema, and spoils them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._makers = {
            "object": self._object,
            "array": self._array,
            "integer": self._integer,
            "number": lambda _schema, _depth: self.random.choice((0, 0.5, 1.0, 2)),
            "boolean": lambda _schema, _depth: self.random.random() < 0.5,
            "null": lambda _schema, _depth: None,
            "string": lambda _schema, _depth: self.random.choice(TEXTS),
        }

    def value(self, schema: dict[str, Any], depth: int = 0) -> Any:
        """Something that the schema allows."""
        schema = resolved(schema)
        if "anyOf" in schema:
            return self.value(self.random.choice(schema["anyOf"]), depth)
        if "const" in schema or "enum" in schema:
            return self.random.choice(schema.get("enum") or [schema["const"]])
        return self._makers[schema["type"]](schema, depth)

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties: dict[str, Any] = schema.get("properties", {})
        if not properties:
            return {self.random.choice(TEXTS): self.random.choice(JUNK) for _ in range(self.random.choice((0, 1, 2)))}
        required = schema.get("required", [])
        return {
            name: self.value(inner, depth + 1)
            for name, inner in properties.items()
            if name in required or self.random.random() < 0.3
        }

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        count = max(self.random.choice((0, 1, 1, 2, 3)), schema.get("minItems", 0))
        return [self.value(schema["items"], depth + 1) for _ in range(count)]

    def _integer(self, schema: dict[str, Any], depth: int) -> int:
        return max(self.random.choice((0, 1, 5, 1000, 2**40)), schema.get("minimum", 0))

    def spoiled(self, value: Any) -> Any:
        """The same with one thing changed somewhere inside."""
        if self.random.random() < 0.8 and value:
            if isinstance(value, dict):
                return self._spoiled_object(value)
            if isinstance(value, list):
                return self._spoiled_array(value)
        return self.random.choice((*JUNK, self._nested()))

    def _spoiled_object(self, value: dict[str, Any]) -> dict[str, Any]:
        key = self.random.choice(list(value))
        match self.random.randrange(5):
            case 0:
                return {name: inner for name, inner in value.items() if name != key}
            case 1:
                return {**value, self.random.choice(TEXTS): value[key], key: self.random.choice(JUNK)}
            case _:
                return {**value, key: self.spoiled(value[key])}

    def _spoiled_array(self, value: list[Any]) -> list[Any]:
        at = self.random.randrange(len(value))
        match self.random.randrange(6):
            case 0:
                return [*value, value[at]]
            case 1:
                return value[:at] + value[at + 1 :]
            case _:
                return [*value[:at], self.spoiled(value[at]), *value[at + 1 :]]

    def _nested(self) -> Any:
        value: Any = {}
        for _ in range(self.random.choice((3, 70, 600))):
            value = [value] if self.random.random() < 0.5 else {"type": value}
        return value

    def garbled(self, data: bytes) -> bytes:
        """Bytes changed, doubled, cut or put in."""
        garbled = bytearray(data)
        for _ in range(self.random.choice((1, 1, 2, 5))):
            at = self.random.randrange(len(garbled) + 1)
            match self.random.randrange(5):
                case 0:
                    garbled[at : at + 1] = self.random.randbytes(1)
                case 1:
                    del garbled[at : at + self.random.choice((1, 3, 50))]
                case 2:
                    garbled[at:at] = garbled[max(0, at - self.random.choice((1, 9, 99))) : at]
                case 3:
                    garbled[at:at] = self.random.choice(SPLINTERS)
                case _:
                    del garbled[at:]
        return bytes(garbled)
