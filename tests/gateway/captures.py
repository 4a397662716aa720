"""Requests recorded from real agents: ``tests/data/captures/<agent>/<scenario>.json.xz``."""

from __future__ import annotations

import json
import lzma
from typing import Any

import msgspec

from longrein.gateway.dialect import Arrival
from tests import tiny

FOLDER = tiny.DATA / "captures"


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Long texts were replaced by filler of equal length; equal texts stayed equal."""

    number: int
    """Position in the session, from 1. ``long`` scenarios have the first and the last three only."""
    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    """As sent, without the API key."""
    body: dict[str, Any]

    @property
    def arrival(self) -> Arrival:
        """What a dialect is given."""
        return Arrival(
            path=self.path,
            query=self.query,
            headers={name.lower(): value for name, value in reversed(self.headers)},
            body=json.dumps(self.body).encode(),
        )


def load(agent: str, scenario: str) -> list[Recorded]:
    """The requests of one recorded session, in order."""
    with lzma.open(FOLDER / agent / f"{scenario}.json.xz") as file:
        return msgspec.json.decode(file.read(), type=list[Recorded])


def scenarios() -> list[tuple[str, str]]:
    """Every recorded (agent, scenario)."""
    return sorted((path.parent.name, path.name.removesuffix(".json.xz")) for path in FOLDER.glob("*/*.json.xz"))
