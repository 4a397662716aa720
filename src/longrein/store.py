"""The run directory: durable, append-only, readable by pandas, DuckDB and ``datasets``.

``rollouts/`` holds one Parquet file a finished group, one line a rollout, written aside and renamed. The rollout
worker alone writes it; the trainer alone writes ``metrics.jsonl`` and ``checkpoints/``.
"""

# pyarrow ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longrein.errors import TraceError
from longrein.types import Call, Completion, Failure, Rollout, RolloutGroup, Score, Task, Timing, Trace

CALL_TYPE = pa.struct(
    [
        ("call_id", pa.int32()),
        ("parent_id", pa.int32()),
        ("role", pa.string()),
        ("role_evidence", pa.string()),
        ("branch_reason", pa.string()),
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
        ("session_id", pa.string()),
        ("calls", pa.list_(CALL_TYPE)),
        ("task", pa.binary()),
    ]
)


class RunStore:
    """The rollouts of one run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "rollouts"
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(".*.part"):
            leftover.unlink()
        self._next = 1 + max((int(path.name.split("-")[0]) for path in self.folder.glob("*.parquet")), default=-1)

    def append(self, group: RolloutGroup) -> Path:
        """Write a finished group durably; it is on disk, whole, when this returns."""
        path = self.folder / f"{self._next:06d}-{group.group_id}.parquet"
        part = self.folder / f".{path.name}.part"
        table = pa.Table.from_pylist([_rollout_line(group, index) for index in range(len(group.rollouts))], SCHEMA)
        pq.write_table(table, part, compression="zstd")
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.rename(path)
        self._next += 1
        return path


def read_groups(folder: Path) -> Iterator[RolloutGroup]:
    """The finished groups of a run directory, in order.

    Raises:
        TraceError: a file is not a rollout file of ours.
    """
    for path in sorted((folder / "rollouts").glob("*.parquet")):
        try:
            lines = pq.read_table(path, schema=SCHEMA).to_pylist()
        except (pa.ArrowInvalid, OSError) as error:
            raise TraceError(f"{path}: not a readable rollout file: {error}. Remove it and go on.") from error
        yield _group(lines)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


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
        "score_reason": rollout.score.reason,
        "failure_kind": rollout.failure.kind if rollout.failure else None,
        "failure_message": rollout.failure.message if rollout.failure else None,
        "metrics": _json(rollout.metrics),
        "session_id": rollout.trace.session_id,
        "calls": [_call_line(call) for call in rollout.trace.calls],
        "task": msgspec.msgpack.encode(group.task),
    }


def _call_line(call: Call) -> dict[str, Any]:
    completion = call.completion
    return {
        "call_id": call.call_id,
        "parent_id": call.parent_id,
        "role": call.role,
        "role_evidence": call.role_evidence,
        "branch_reason": call.branch_reason,
        "prompt_delta": call.prompt_delta,
        "token_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        "finish_reason": completion.finish_reason,
        "min_policy_version": completion.min_policy_version,
        "max_policy_version": completion.max_policy_version,
        "prefill_tokens": completion.prefill_tokens,
        "delivered": call.delivered,
        "dialect": call.dialect,
        "messages": _json(call.messages),
        "tools": _json(call.tools),
        "reply": _json(call.reply),
        "asked": _json(call.asked),
        "timing": _json(call.timing),
    }


def _group(lines: list[dict[str, Any]]) -> RolloutGroup:
    scored = any(line["advantage"] is not None for line in lines)
    return RolloutGroup(
        group_id=lines[0]["group_id"],
        task=msgspec.msgpack.decode(lines[0]["task"], type=Task),
        rollouts=tuple(_rollout(line) for line in lines),
        rewards=tuple(line["reward"] for line in lines) if scored else (),
        advantages=tuple(line["advantage"] for line in lines) if scored else (),
    )


def _rollout(line: dict[str, Any]) -> Rollout:
    failure = Failure(kind=line["failure_kind"], message=line["failure_message"]) if line["failure_kind"] else None
    metrics: dict[str, float] = msgspec.json.decode(line["score_metrics"])
    return Rollout(
        rollout_id=line["rollout_id"],
        group_id=line["group_id"],
        task_id=line["task_id"],
        seed=line["seed"],
        status=line["status"],
        trace=Trace(session_id=line["session_id"], calls=tuple(_call(call) for call in line["calls"])),
        score=Score(reward=line["harness_reward"], metrics=metrics, reason=line["score_reason"]),
        failure=failure,
        metrics=msgspec.json.decode(line["metrics"]),
    )


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
