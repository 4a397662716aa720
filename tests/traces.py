"""Small traces made by hand or by hypothesis, for tests of what comes after the gateway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from longrein.types import Call, Completion, Failure, Rollout, Score, Task, Timing, Trace


def call(call_id: int, parent_id: int | None, prompt: Sequence[int], sampled: Sequence[int], **changes: Any) -> Call:
    """A call with given ids; versions 0, delivered."""
    completion = Completion(
        token_ids=np.asarray(sampled, np.int32),
        logprobs=-np.ones(len(sampled), np.float32),
        finish_reason="stop",
        min_policy_version=changes.pop("min_policy_version", 0),
        max_policy_version=changes.pop("max_policy_version", 0),
    )
    fields: dict[str, Any] = {
        "delivered": True,
        "messages": ({"role": "user", "content": f"m{call_id}"},),
        "reply": {"role": "assistant", "content": f"r{call_id}"},
        "timing": Timing(started_at_s=1.0),
        **changes,
    }
    return Call(
        call_id=call_id,
        parent_id=parent_id,
        prompt_delta=np.asarray(prompt, np.int32),
        completion=completion,
        **fields,
    )


def rollout(rollout_id: str, calls: Sequence[Call], reward: float | None = 1.0, **changes: Any) -> Rollout:
    """A completed rollout of group ``g`` with a given reward."""
    fields: dict[str, Any] = {"group_id": "g", "task_id": "t", "seed": 0, "status": "completed", **changes}
    return Rollout(
        rollout_id=rollout_id,
        trace=Trace(session_id=rollout_id, calls=tuple(calls)),
        score=Score(reward=reward, reason="" if reward is not None else "crashed"),
        **fields,
    )


def failed(rollout_id: str) -> Rollout:
    """A rollout that an infrastructure fault ended."""
    failure = Failure(kind="sandbox", message="no namespace")
    return rollout(rollout_id, [], reward=None, status="failed", failure=failure)


TASK = Task(task_id="t", prompt="do it", files={"a.txt": b"\x00\xff"}, metadata={"column": 3})

ids = st.lists(st.integers(0, 50), min_size=1, max_size=6)


@st.composite
def call_trees(draw: st.DrawFn, max_calls: int = 6) -> list[Call]:
    """A random forest of calls: each has an earlier call as parent, or none."""
    calls: list[Call] = []
    for call_id in range(draw(st.integers(1, max_calls))):
        parent = draw(st.sampled_from([None, *range(call_id)]))
        calls.append(call(call_id, parent, draw(ids), draw(ids)))
    return calls
