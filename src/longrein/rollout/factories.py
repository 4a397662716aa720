"""What users give as ``harness_session_factory``: ours or OpenEnv's, made or still to be made; and who drives it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from longrein.errors import ConfigError
from longrein.rollout.driving import AgentLoops, Driving, RecordedElsewhere, WhiteBox
from longrein.sessions.base import SessionFactory
from longrein.sessions.openenv import OpenEnvSessions, is_openenv_factory
from longrein.sessions.openenv_types import HarnessAdapter, ResourceSessionFactory

Factory = SessionFactory | ResourceSessionFactory | OpenEnvSessions
AnyFactory = Factory | Callable[..., Factory]
"""As TRL takes it: a factory, or what makes one (a function, a class, a ``functools.partial``)."""


def made_factory(given: AnyFactory, temperature: float) -> Factory:
    """The factory itself.

    What makes one is called without arguments, or with the run's ``sampling`` where it takes that (as TRL's trainers
    call it for agents whose tokens are recorded elsewhere).

    Raises:
        ConfigError: neither a factory nor callable.
    """
    is_made = isinstance(given, OpenEnvSessions) or (hasattr(given, "create") and not isinstance(given, type))
    if is_made:
        return cast("Factory", given)
    if not callable(given):
        raise ConfigError(
            f"harness_session_factory: {type(given).__name__} has no create(); give a session factory or a callable "
            "that returns one"
        )
    if "sampling" in inspect.signature(given).parameters:
        return given(sampling=_sampling(temperature))
    return given()


def driving_of(factory: Factory, adapter: HarnessAdapter | None) -> Driving:
    """Who drives this factory's sessions.

    Raises:
        ConfigError: an adapter that is none, or one for a factory whose agents own their loops.
    """
    if isinstance(factory, OpenEnvSessions):
        sessions = factory
    elif is_openenv_factory(factory):
        sessions = OpenEnvSessions(factory=cast("ResourceSessionFactory", factory))
    else:
        if adapter is not None:
            raise ConfigError(
                f"harness_adapter={type(adapter).__name__} is for sessions whose loop we own, but the agents of "
                f"{type(factory).__name__} run their own; leave harness_adapter None"
            )
        return AgentLoops(factory=cast("SessionFactory", factory))
    if adapter is None:
        return RecordedElsewhere(sessions=sessions)
    if not callable(getattr(adapter, "run_white_box", None)):
        raise ConfigError(
            f"harness_adapter={type(adapter).__name__} has no run_white_box(); give OpenEnv's MCPHarnessAdapter() or "
            "longrein.rollout.tool_loop.ToolLoop()"
        )
    return WhiteBox(sessions=sessions, adapter=adapter)


def _sampling(temperature: float) -> dict[str, Any]:
    """The policy that tokens are sampled with, in vLLM's names: nothing truncated, nothing penalised."""
    return {"temperature": temperature, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
