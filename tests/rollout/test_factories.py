"""Which driver a factory gets: by its shape alone."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from longrein.errors import ConfigError
from longrein.rollout.driving import AgentLoops, RecordedElsewhere, WhiteBox
from longrein.rollout.factories import driving_of, made_factory
from longrein.rollout.tool_loop import ToolLoop
from longrein.sessions.openenv import OpenEnvSessions
from tests.rollout.by_hand import HandFactory
from tests.rollout.environments import CountingFactory


def test_shapes_and_their_drivers() -> None:
    theirs = CountingFactory()
    assert isinstance(driving_of(HandFactory(), None), AgentLoops)
    recorded = driving_of(theirs, None)
    assert isinstance(recorded, RecordedElsewhere) and recorded.sessions.factory is theirs
    assert isinstance(driving_of(theirs, ToolLoop()), WhiteBox)
    chosen = OpenEnvSessions(factory=theirs, call_timeout_s=3.0)
    white = driving_of(chosen, ToolLoop())
    assert isinstance(white, WhiteBox) and white.sessions is chosen


class Loose:
    def create(self, task: Any, **named: Any) -> None: ...


class Odd:
    def create(self, name: str) -> None: ...


def test_what_fits_nowhere_is_refused_with_what_it_has() -> None:
    assert isinstance(driving_of(Loose(), None), RecordedElsewhere)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"create\(name\) of Odd has neither"):
        driving_of(Odd(), None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="object has no run_white_box"):
        driving_of(CountingFactory(), object())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="agents of HandFactory run their own"):
        driving_of(HandFactory(), ToolLoop())
    with pytest.raises(ConfigError, match="int has no create"):
        made_factory(3, 1.0)  # type: ignore[arg-type]


def needs_sampling(sampling: dict[str, Any], extra: int = 0) -> CountingFactory:
    return CountingFactory(reward=(sampling, extra))


def test_what_makes_a_factory_is_called_as_trl_calls_it() -> None:
    assert isinstance(made_factory(CountingFactory, 1.0), CountingFactory)
    assert isinstance(made_factory(HandFactory, 1.0), HandFactory)
    made = made_factory(functools.partial(needs_sampling, extra=2), 0.7)
    assert isinstance(made, CountingFactory)
    sampling, extra = made.changes["reward"]
    assert sampling["temperature"] == 0.7 and sampling["top_p"] == 1.0 and extra == 2
