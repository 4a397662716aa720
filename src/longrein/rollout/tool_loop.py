"""Our own white-box loop: OpenEnv's ``run_white_box``, without OpenEnv."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from longrein.sessions.heard import as_text, call_heard
from longrein.sessions.openenv_types import (
    HarnessRolloutResult,
    HarnessRunLimits,
    LLMResponse,
    ResourceSession,
    RolloutEvent,
    ToolCall,
    ToolResultShape,
    ToolTraceEntry,
    given,
)
from longrein.types import Message


class ToolLoop(msgspec.Struct, frozen=True, kw_only=True):
    """A ``harness_adapter``: asks the model, runs the tools it calls, and asks again until it calls none.

    Every call gets a result: a tool's error, and a call that no limit allows, are results too. A run that was cut off
    (by turns, or by tool calls in all) has ``metrics["truncated"]``.
    """

    def run_white_box(
        self, model_step: Any, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        """Run one episode.

        Raises:
            InfrastructureError: the environment is gone.
        """
        return _Run(session, limits or HarnessRunLimits()).to_the_end(model_step)

    def run_black_box(self, session: ResourceSession, limits: HarnessRunLimits | None = None) -> HarnessRolloutResult:
        """Not what this is for."""
        raise NotImplementedError("ToolLoop samples every turn itself; use run_white_box()")


class _Run:
    def __init__(self, session: ResourceSession, limits: HarnessRunLimits) -> None:
        self._session = session
        self._limits = limits
        self._result = given().run_result(messages=list(session.initial_messages()))
        self._tools = session.list_tools()

    def to_the_end(self, model_step: Any) -> HarnessRolloutResult:
        result = self._result
        for turn in range(self._limits.max_turns):
            reply = self._ask(model_step, turn)
            if not reply.tool_calls:
                result.done = True
                break
            self._answer(reply.tool_calls)
            if result.done or result.metrics.get("truncated"):
                break
        else:
            result.metrics["truncated"] = True
        result.metrics.setdefault("turns", sum(event.type == "model_response" for event in result.events))
        result.metrics.setdefault("tool_calls", len(result.tool_trace))
        return result

    def _ask(self, model_step: Any, turn: int) -> LLMResponse:
        result = self._result
        step = model_step(list(result.messages), self._tools, dict(self._limits.sampling))
        result.messages.append(step.response.to_message_dict())
        result.prompt_ids.extend(step.prompt_ids)
        result.completion_ids.extend(step.completion_ids)
        result.logprobs.extend(step.logprobs)
        calls = [{"id": call.id, "name": call.name, "arguments": dict(call.args)} for call in step.response.tool_calls]
        self._note("model_response", turn=turn, content=step.response.content, tool_calls=calls)
        return cast("LLMResponse", step.response)

    def _answer(self, calls: list[ToolCall]) -> None:
        for position, call in enumerate(calls):
            self._result.messages.append(self._result_message(call, self._refusal(position)))

    def _refusal(self, position: int) -> str:
        """Why the call at this place of the turn is not run; empty when it is."""
        limits, result = self._limits, self._result
        if result.done:
            return "not run: the episode is over"
        if limits.max_tool_calls_per_turn is not None and position >= limits.max_tool_calls_per_turn:
            return f"not run: at most {limits.max_tool_calls_per_turn} calls a turn"
        if limits.max_total_tool_calls is not None and len(result.tool_trace) >= limits.max_total_tool_calls:
            result.metrics["truncated"] = True
            return f"not run: at most {limits.max_total_tool_calls} calls in all"
        return ""

    def _result_message(self, call: ToolCall, refusal: str) -> Message:
        content = json.dumps({"error": refusal}) if refusal else as_text(self._run(call).data)
        return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}

    def _run(self, call: ToolCall) -> ToolResultShape:
        tool_result = call_heard(self._session, call.name, dict(call.args))
        entry = ToolTraceEntry(tool_name=call.name, arguments=dict(call.args), result=tool_result)
        self._result.tool_trace.append(entry)
        self._note("tool_call", tool_name=call.name, arguments=dict(call.args), done=tool_result.done)
        self._result.done = self._result.done or tool_result.done
        return tool_result

    def _note(self, kind: str, **payload: Any) -> None:
        self._result.events.append(RolloutEvent(type=kind, payload=payload))


def final_state_of(result: Any) -> dict[str, Any]:
    """What OpenEnv's own trainers give ``verify()`` beside the transcript."""
    return {
        "done": result.done,
        "metrics": dict(result.metrics),
        "events": [{"type": event.type, "payload": dict(event.payload)} for event in result.events],
        "tool_trace": list(_plain(result)),
    }


def _plain(result: Any) -> Iterator[dict[str, Any]]:
    for entry in result.tool_trace:
        came = entry.result
        said = {"data": came.data, "done": came.done, "metadata": dict(came.metadata), "error": came.error}
        yield {"tool_name": entry.tool_name, "arguments": dict(entry.arguments), "result": said}
