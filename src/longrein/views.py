"""What the functions that a user gives are shown: a call to ``train_turn_fn``, a rollout to ``rollout_reward_fn``."""

from __future__ import annotations

from typing import Any

import msgspec

from longrein.types import Call, Finding, Message, Role, Score, StatusName, Task, Tool, Trace


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What ``train_turn_fn`` sees of one call."""

    trace: Trace
    call: Call

    @property
    def index(self) -> int:
        """Position among the session's calls, from 0."""
        return self.call.call_id

    @property
    def role(self) -> Role:
        """What the call was for."""
        return self.call.role

    @property
    def messages(self) -> list[Message]:
        """The whole conversation that the model was asked to go on with."""
        messages: list[Message] = []
        for call in self.trace.line(self.call):
            messages += [*call.messages, call.reply]
        return messages[:-1]

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What was offered."""
        return self.trace.line(self.call)[0].tools

    @property
    def content(self) -> str:
        """What the model said, calls and reasoning aside."""
        return self.call.reply.get("content") or ""

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """What the model called."""
        return self.call.reply.get("tool_calls") or []


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What ``rollout_reward_fn`` sees of a finished rollout."""

    task: Task
    status: StatusName
    trace: Trace
    score: Score
    metrics: dict[str, float] = {}
    findings: tuple[Finding, ...] = ()
