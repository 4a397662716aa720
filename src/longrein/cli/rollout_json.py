"""Rollouts as JSON for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from longrein.types import Call, Rollout


def as_json(rollouts: Sequence[Rollout], *, with_tokens: bool) -> bytes:
    """A list of rollouts, each with its calls; ``with_tokens``: prompt ids, sampled ids and logprobs besides."""
    return msgspec.json.format(msgspec.json.encode([_rollout(rollout, with_tokens) for rollout in rollouts]))


def _rollout(rollout: Rollout, with_tokens: bool) -> dict[str, Any]:
    said: dict[str, Any] = {
        "rollout_id": rollout.rollout_id,
        "task_id": rollout.task_id,
        "seed": rollout.seed,
        "status": rollout.status,
        "score": rollout.score,
        "failure": rollout.failure,
        "findings": rollout.findings,
        "metrics": rollout.metrics,
    }
    return {**said, "calls": [_call(call, rollout, with_tokens) for call in rollout.trace.calls]}


def _call(call: Call, rollout: Rollout, with_tokens: bool) -> dict[str, Any]:
    completion = call.completion
    said: dict[str, Any] = {
        "call_id": call.call_id,
        "parent_id": call.parent_id,
        "role": call.role,
        "role_evidence": call.role_evidence,
        "branch_reason": call.branch_reason,
        "dialect": call.dialect,
        "delivered": call.delivered,
        "trains": call.trains,
        "messages": call.messages,
        "tools": call.tools,
        "reply": call.reply,
        "asked": call.asked,
        "prompt_tokens": int(rollout.trace.prompt_ids(call).size),
        "completion_tokens": int(completion.token_ids.size),
        "finish_reason": completion.finish_reason,
        "min_policy_version": completion.min_policy_version,
        "max_policy_version": completion.max_policy_version,
        "prefill_tokens": completion.prefill_tokens,
        "timing": call.timing,
    }
    if not with_tokens:
        return said
    tokens = {
        "prompt_delta": call.prompt_delta.tolist(),
        "token_ids": completion.token_ids.tolist(),
        "logprobs": completion.logprobs.tolist(),
    }
    return {**said, **tokens}
