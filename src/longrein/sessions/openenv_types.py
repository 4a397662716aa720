"""OpenEnv's shapes (openenv 0.10, ``openenv.core.harness``), written down here so that nothing needs its package.

Protocols for what others give us, and classes for what we give them: dataclasses with OpenEnv's names and fields.
Where OpenEnv is loaded, because a factory or an adapter of it is at work, :func:`given` has its own classes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from longrein.types import Message


class ToolShape(Protocol):
    """A tool as MCP describes it."""

    name: str
    description: str
    input_schema: dict[str, Any]


class ToolResultShape(Protocol):
    """What a tool call came to."""

    data: Any
    done: bool
    metadata: dict[str, Any]
    error: str | None


class VerifyResultShape(Protocol):
    """A session's verdict on itself."""

    env_reward: float | None
    done: bool
    metrics: dict[str, Any]


class ResourceSession(Protocol):
    """One episode. All methods block."""

    def initial_messages(self) -> list[Message]:
        """What the model is asked."""
        ...

    def list_tools(self) -> Sequence[ToolShape]:
        """What the model may call."""
        ...

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResultShape:
        """Run a tool."""
        ...

    def verify(self, transcript: list[Message], final_state: Any | None = None) -> VerifyResultShape:
        """Judge the episode."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class ResourceSessionFactory(Protocol):
    """Makes sessions."""

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> ResourceSession:
        """One isolated session."""
        ...


class RunResult(Protocol):
    """What a white-box adapter says of its run."""

    messages: list[Message]
    tool_trace: Sequence[Any]
    events: Sequence[Any]
    done: bool
    metrics: dict[str, Any]


class HarnessAdapter(Protocol):
    """Drives a session turn by turn; blocks."""

    def run_white_box(self, model_step: Any, session: Any, limits: Any = None) -> RunResult:
        """Ask ``model_step(messages, tools, sampling)`` for every turn and call the session's tools."""
        ...


@dataclass
class ToolCall:
    """A call that the model wants."""

    id: str
    name: str
    args: dict[str, Any]


@dataclass
class LLMResponse:
    """A reply of the model."""

    content: str
    tool_calls: list[ToolCall] = field(default_factory=list[ToolCall])

    def to_message_dict(self) -> Message:
        """The assistant's message in OpenAI form."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.args)}}
                for call in self.tool_calls
            ]
        return message


@dataclass
class ModelStepResult:
    """A reply with its exact tokens."""

    response: LLMResponse
    prompt_ids: list[int] = field(default_factory=list[int])
    completion_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])


@dataclass
class ToolResult:
    """What a tool call came to."""

    data: Any = None
    done: bool = False
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str | None = None


@dataclass
class ToolTraceEntry:
    """A tool call and its result."""

    tool_name: str
    arguments: dict[str, Any]
    result: ToolResultShape


@dataclass
class RolloutEvent:
    """Something that happened in a run."""

    type: str
    payload: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class HarnessRolloutResult:
    """A whole run."""

    messages: list[Message] = field(default_factory=list[Message])
    tool_trace: list[ToolTraceEntry] = field(default_factory=list[ToolTraceEntry])
    events: list[RolloutEvent] = field(default_factory=list[RolloutEvent])
    done: bool = False
    metrics: dict[str, Any] = field(default_factory=dict[str, Any])
    prompt_ids: list[int] = field(default_factory=list[int])
    completion_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])


@dataclass
class HarnessRunLimits:
    """Bounds of a run."""

    max_turns: int = 10
    max_tool_calls_per_turn: int | None = None
    max_total_tool_calls: int | None = None
    sampling: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class VerifyResult:
    """A verdict."""

    env_reward: float | None = None
    done: bool = False
    metrics: dict[str, Any] = field(default_factory=dict[str, Any])
    artifacts: dict[str, Any] = field(default_factory=dict[str, Any])


class Types(msgspec.Struct, frozen=True, kw_only=True):
    """The classes of what we hand to factories and adapters."""

    tool_call: Callable[..., ToolCall] = ToolCall
    llm_response: Callable[..., LLMResponse] = LLMResponse
    model_step_result: Callable[..., ModelStepResult] = ModelStepResult
    tool_result: Callable[..., ToolResult] = ToolResult
    run_result: Callable[..., HarnessRolloutResult] = HarnessRolloutResult
    run_limits: Callable[..., HarnessRunLimits] = HarnessRunLimits
    verify_result: Callable[..., VerifyResult] = VerifyResult


def given() -> Types:
    """OpenEnv's own classes where its package is loaded already, else ours of the same shape. Imports nothing."""
    rollout = sys.modules.get("openenv.core.harness.rollout")
    client = sys.modules.get("openenv.core.llm_client")
    if rollout is None or client is None:
        return Types()
    return Types(
        tool_call=client.ToolCall,
        llm_response=client.LLMResponse,
        model_step_result=rollout.ModelStepResult,
        tool_result=rollout.ToolResult,
        run_result=rollout.HarnessRolloutResult,
        run_limits=rollout.HarnessRunLimits,
        verify_result=rollout.VerifyResult,
    )
