"""Traces in OpenEnv's own types: what it validates is what we read, and what we write is what it validates."""

from __future__ import annotations

from typing import Any

import pytest

from longrein.sessions.openenv_entries import entries_of
from longrein.sessions.openenv_trace import trace_of_proxy, trace_of_training
from tests.gateway.rig import rig, run_bash, say
from tests.sessions.test_openenv_trace import OVER, two_turns

pytestmark = pytest.mark.openenv


def training_trace(entries: list[dict[str, Any]]) -> Any:
    from openenv.core.harness import TrainingTrace

    filled = [
        {"loss_mask": [0] * len(e["prompt_token_ids"]) + [1] * len(e["completion_token_ids"]), **e} for e in entries
    ]
    return TrainingTrace.from_entries([{**e, "metadata": {"node_id": f"n{at}"}} for at, e in enumerate(filled)])


def test_openenvs_training_trace_is_read_and_its_masks_count() -> None:
    entries = [{**two_turns()[0], "loss_mask": [0, 0, 0, 1]}, two_turns()[1]]
    trace = trace_of_training(training_trace(entries), OVER).trace
    assert [call.parent_id for call in trace.calls] == [None, 0]
    mask = trace.calls[0].loss_mask
    assert mask is not None and mask.tolist() == [False, True] and trace.calls[1].loss_mask is None


async def test_our_captures_pass_openenvs_validation_and_come_back_token_for_token() -> None:
    async with rig([run_bash("ls"), say("done")]) as r:
        client = r.client()
        tool = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
        messages: list[Any] = [{"role": "user", "content": "go"}]
        first = await client.chat.completions.create(model="policy", messages=messages, tools=[tool])  # type: ignore[list-item]
        said = first.choices[0].message.model_dump(exclude_none=True)
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "a"}
        await client.chat.completions.create(model="policy", messages=[*messages, said, result], tools=[tool])  # type: ignore[list-item]
        await client.close()
        ours = r.trace()
    theirs = training_trace(entries_of(ours))
    back = trace_of_training(theirs, OVER).trace
    assert len(ours.calls) == 2
    for mine, returned in zip(ours.calls, back.calls, strict=True):
        assert ours.prompt_ids(mine).tolist() == back.prompt_ids(returned).tolist()
        assert mine.completion.token_ids.tolist() == returned.completion.token_ids.tolist()
        assert mine.parent_id == returned.parent_id
    flat = trace_of_proxy(theirs.to_trace_entries(), OVER).trace
    assert [call.parent_id for call in flat.calls] == [None, 0]


def test_what_openenv_refuses_never_gets_to_us() -> None:
    """Its validation and ours agree on what is malformed."""
    with pytest.raises(ValueError, match="logprob"):
        training_trace([{**two_turns()[0], "per_token_logps": [0.5, -1.0]}])
