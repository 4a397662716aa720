"""A finished group as lines of a table, one a rollout, and back.

A prompt that an agent sent again is written once: ``prompt_of`` is the call that has its tokens, messages and tools.
"""

# pyarrow ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from longrein.types import Call, Completion, Failure, Finding, Rollout, RolloutGroup, Score, Task, Timing, Trace

CALL_TYPE = pa.struct(
    [
        ("call_id", pa.int32()),
        ("parent_id", pa.int32()),
        ("role", pa.string()),
        ("role_evidence", pa.string()),
        ("branch_reason", pa.string()),
        ("trains", pa.bool_()),
        ("loss_mask", pa.list_(pa.bool_())),
        ("prompt_of", pa.int32()),
        ("prompt_delta", pa.list_(pa.int32())),
        ("token_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("finish_reason", pa.string()),
        ("min_policy_version", pa.int32()),
        ("max_policy_version", pa.int32()),
        ("prefill_tokens", pa.int32()),
        ("delivered", pa.bool_()),
        ("dialect", pa.string()),
        ("messages", pa.string()),
        ("tools", pa.string()),
        ("reply", pa.string()),
        ("asked", pa.string()),
        ("timing", pa.string()),
    ]
)
SCHEMA = pa.schema(
    [
        ("rollout_id", pa.string()),
        ("group_id", pa.string()),
        ("task_id", pa.string()),
        ("seed", pa.int64()),
        ("prompt", pa.string()),
        ("status", pa.string()),
        ("harness_reward", pa.float64()),
        ("reward", pa.float64()),
        ("advantage", pa.float64()),
        ("score_metrics", pa.string()),
        ("score_reason", pa.string()),
        ("failure_kind", pa.string()),
        ("failure_message", pa.string()),
        ("metrics", pa.string()),
        ("findings", pa.string()),
        ("session_id", pa.string()),
        ("calls", pa.list_(CALL_TYPE)),
        ("task", pa.binary()),
    ]
)


def lines_of(group: RolloutGroup) -> list[dict[str, Any]]:
    """Its rollouts as lines of :data:`SCHEMA`."""
    return [_rollout_line(group, index) for index in range(len(group.rollouts))]


def group_of(lines: list[dict[str, Any]]) -> RolloutGroup:
    """The group that :func:`lines_of` was given."""
    scored = is_scored(lines)
    return RolloutGroup(
        group_id=lines[0]["group_id"],
        task=msgspec.msgpack.decode(lines[0]["task"], type=Task),
        rollouts=tuple(_rollout(line) for line in lines),
        rewards=tuple(line["reward"] for line in lines) if scored else (),
        advantages=tuple(line["advantage"] for line in lines) if scored else (),
    )


def is_scored(lines: list[dict[str, Any]]) -> bool:
    """Whether it has advantages."""
    return any(line["advantage"] is not None for line in lines)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _text(words: str) -> str:
    """Words of somebody else's, a file's name say, may hold half a surrogate pair, which no file of ours can."""
    return words.encode(errors="replace").decode()


def _rollout_line(group: RolloutGroup, index: int) -> dict[str, Any]:
    rollout = group.rollouts[index]
    return {
        "rollout_id": rollout.rollout_id,
        "group_id": rollout.group_id,
        "task_id": rollout.task_id,
        "seed": rollout.seed,
        "prompt": group.task.prompt,
        "status": rollout.status,
        "harness_reward": rollout.score.reward,
        "reward": group.rewards[index] if group.rewards else None,
        "advantage": group.advantages[index] if group.advantages else None,
        "score_metrics": _json(rollout.score.metrics),
        "score_reason": _text(rollout.score.reason),
        "failure_kind": rollout.failure.kind if rollout.failure else None,
        "failure_message": _text(rollout.failure.message) if rollout.failure else None,
        "metrics": _json(rollout.metrics),
        "findings": _json([{"kind": one.kind, "detail": _text(one.detail)} for one in rollout.findings]),
        "session_id": rollout.trace.session_id,
        "calls": _call_lines(rollout.trace.calls),
        "task": msgspec.msgpack.encode(group.task),
    }


def _call_lines(calls: tuple[Call, ...]) -> list[dict[str, Any]]:
    roots: dict[int, list[Call]] = {}
    return [_call_line(call, _same_prompt(call, roots) if call.parent_id is None else None) for call in calls]


def _same_prompt(root: Call, roots: dict[int, list[Call]]) -> int | None:
    """The first call that had exactly this prompt. ``roots``: the different ones before it, by size."""
    alike = roots.setdefault(root.prompt_delta.size, [])
    for other in alike:
        same_words = other.messages == root.messages and other.tools == root.tools
        if same_words and np.array_equal(other.prompt_delta, root.prompt_delta):
            return other.call_id
    alike.append(root)
    return None


def _call_line(call: Call, prompt_of: int | None) -> dict[str, Any]:
    completion = call.completion
    own = prompt_of is None
    return {
        "call_id": call.call_id,
        "parent_id": call.parent_id,
        "role": call.role,
        "role_evidence": call.role_evidence,
        "branch_reason": call.branch_reason,
        "trains": call.trains,
        "loss_mask": call.loss_mask,
        "prompt_of": prompt_of,
        "prompt_delta": call.prompt_delta if own else call.prompt_delta[:0],
        "token_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        "finish_reason": completion.finish_reason,
        "min_policy_version": completion.min_policy_version,
        "max_policy_version": completion.max_policy_version,
        "prefill_tokens": completion.prefill_tokens,
        "delivered": call.delivered,
        "dialect": call.dialect,
        "messages": _json(call.messages if own else ()),
        "tools": _json(call.tools if own else ()),
        "reply": _json(call.reply),
        "asked": _json(call.asked),
        "timing": _json(call.timing),
    }


def _rollout(line: dict[str, Any]) -> Rollout:
    failure = Failure(kind=line["failure_kind"], message=line["failure_message"]) if line["failure_kind"] else None
    metrics: dict[str, float] = msgspec.json.decode(line["score_metrics"])
    return Rollout(
        rollout_id=line["rollout_id"],
        group_id=line["group_id"],
        task_id=line["task_id"],
        seed=line["seed"],
        status=line["status"],
        trace=Trace(session_id=line["session_id"], calls=_calls(line["calls"])),
        score=Score(reward=line["harness_reward"], metrics=metrics, reason=line["score_reason"]),
        failure=failure,
        metrics=msgspec.json.decode(line["metrics"]),
        # A run directory of an earlier version has none.
        findings=msgspec.json.decode(line["findings"] or "[]", type=tuple[Finding, ...]),
    )


def _calls(lines: list[dict[str, Any]]) -> tuple[Call, ...]:
    calls: list[Call] = []
    for line in lines:
        call = _call(line)
        if line["prompt_of"] is not None:
            root = calls[line["prompt_of"]]
            call = msgspec.structs.replace(
                call, prompt_delta=root.prompt_delta, messages=root.messages, tools=root.tools
            )
        calls.append(call)
    return tuple(calls)


def _call(line: dict[str, Any]) -> Call:
    completion = Completion(
        token_ids=np.asarray(line["token_ids"], np.int32),
        logprobs=np.asarray(line["logprobs"], np.float32),
        finish_reason=line["finish_reason"],
        min_policy_version=line["min_policy_version"],
        max_policy_version=line["max_policy_version"],
        prefill_tokens=line["prefill_tokens"],
    )
    return Call(
        call_id=line["call_id"],
        parent_id=line["parent_id"],
        role=line["role"],
        role_evidence=line["role_evidence"],
        branch_reason=line["branch_reason"],
        trains=line["trains"],
        loss_mask=None if line.get("loss_mask") is None else np.asarray(line["loss_mask"], np.bool_),
        prompt_delta=np.asarray(line["prompt_delta"], np.int32),
        completion=completion,
        delivered=line["delivered"],
        messages=tuple(msgspec.json.decode(line["messages"])),
        tools=tuple(msgspec.json.decode(line["tools"])),
        reply=msgspec.json.decode(line["reply"]),
        dialect=line["dialect"],
        asked=msgspec.json.decode(line["asked"]),
        timing=msgspec.json.decode(line["timing"], type=Timing),
    )
