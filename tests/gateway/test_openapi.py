"""The description of what is served is the truth: same routes, same methods, same fields, same answers."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import msgspec
import pytest

from longrein.gateway.dialects.chat import ChatBody
from longrein.gateway.dialects.gemini.request import GeminiBody, GenerationConfig
from longrein.gateway.dialects.messages.request import MessagesBody
from longrein.gateway.dialects.responses.dialect import ResponsesBody
from longrein.gateway.routes import _EXACT, _GEMINI_METHODS, Count, Generate, NoRoute, route
from tests.gateway.captures import load, scenarios
from tests.gateway.openapi import Maker, Operation, conforms, document, operation_of, operations, resolved
from tests.gateway.rig import rig, say
from tests.gateway.tongues import TONGUES

METHODS = {f"/{version}/models/{{model}}:{name}" for version in ("v1", "v1beta") for name in _GEMINI_METHODS}
MODELS = {f"/{version}/models{model}" for version in ("v1", "v1beta") for model in ("", "/{model}")}


def test_every_route_is_described_and_no_other() -> None:
    assert set(document()["paths"]) == {*_EXACT, *METHODS, *MODELS, "/"}
    for operation in operations():
        found = route(operation.path.replace("{model}", "some:model"), {})
        assert not isinstance(found, NoRoute) and found.method == operation.method
        assert bool(operation.body) == isinstance(found, Generate | Count)


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        ("ChatRequest", ChatBody),
        ("ResponsesRequest", ResponsesBody),
        ("MessagesRequest", MessagesBody),
        ("GeminiRequest", GeminiBody),
    ],
)
def test_every_field_that_is_read_is_described(schema: str, body: type[msgspec.Struct]) -> None:
    described = document()["components"]["schemas"][schema]["properties"]
    assert {field.encode_name for field in msgspec.structs.fields(body)} <= set(described)
    if body is GeminiBody:
        config = described["generationConfig"]["anyOf"][0]["properties"]
        assert {field.encode_name for field in msgspec.structs.fields(GenerationConfig)} <= set(config)


def test_no_reference_leads_nowhere() -> None:
    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "$ref" in value and "/schemas/" in value["$ref"]:
                assert resolved(value)
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(document())


@pytest.mark.parametrize(("agent", "scenario"), scenarios())
def test_what_agents_really_send_is_described(agent: str, scenario: str) -> None:
    for recorded in load(agent, scenario):
        assert conforms(recorded.body, operation_of(recorded.path).body), recorded.number


@pytest.mark.parametrize("operation", [one for one in operations() if one.body], ids=lambda one: one.path)
async def test_what_is_described_is_served(operation: Operation) -> None:
    """What the document allows is answered as it says; a few rules that no schema can say are refused by name."""
    maker = Maker(Random(1))
    answer = document()["paths"][operation.path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    refusal = document()["components"]["schemas"][operation.refusal]
    served = 0
    async with rig([say("fine")], context_length=100_000, max_calls=1000) as r:
        for _ in range(40):
            body = maker.value(operation.body)
            assert conforms(body, operation.body)
            url = r.endpoint.base_url + operation.path.replace("{model}", "policy")
            heard = await TONGUES["chat"].post(url, json.dumps(body).encode())
            if heard.status == 200:
                served += 1
                streams = body.get("stream") or "streamGenerateContent" in url
                assert streams or conforms(heard.json(), answer), heard.text
            else:
                assert heard.status == 400 and conforms(heard.json(), refusal), heard.text
                allowed = ("prefill", "is empty", "no messages", "a second, different tool", "must end", "nothing but")
                assert any(words in heard.text for words in allowed), f"{heard.text}\n{json.dumps(body)}"
    assert served >= 20
