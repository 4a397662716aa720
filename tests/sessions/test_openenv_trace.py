"""Traces that OpenEnv recorded become ours, token for token; whatever is malformed is refused with its place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.errors import TraceError
from longrein.rows import rows_from_rollout
from longrein.sessions.openenv_trace import RecordedOver, conversation, trace_of_proxy, trace_of_training
from longrein.types import Trace
from tests.traces import rollout

OVER = RecordedOver(session_id="s", vocab_size=1000, min_policy_version=3, max_policy_version=5)
USER = {"role": "user", "content": "go"}
TOOL = {"type": "function", "function": {"name": "bash", "description": "", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}


def entry(prompt: list[Any], sampled: list[Any], **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "request": {"messages": [USER], "tools": [TOOL]},
        "response": {"choices": [{"message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]},
        "prompt_token_ids": prompt,
        "completion_token_ids": sampled,
        "per_token_logps": [-0.5] * len(sampled),
        **changes,
    }
    return {name: value for name, value in fields.items() if value is not ...}


def answered(message: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": finish}]}


def two_turns() -> list[dict[str, Any]]:
    """A turn whose only content is a tool call (``content`` is null), its result, and a last turn that calls again."""
    first = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "a b"}
    last = {"role": "assistant", "content": "bye", "tool_calls": [{**CALL, "id": "c2"}]}
    more = {"messages": [USER, first, result], "tools": [TOOL]}
    return [
        entry([1, 2], [3, 4], response=answered(first, "tool_calls")),
        entry([1, 2, 3, 4, 9], [5], request=more, response=answered(last, "length")),
    ]


def test_conversation_is_one_line_of_exact_tokens_with_versions_as_far_as_known() -> None:
    trace = trace_of_proxy(two_turns(), OVER).trace
    first, second = trace.calls
    assert (first.parent_id, second.parent_id) == (None, 0)
    assert second.prompt_delta.tolist() == [9] and trace.prompt_ids(second).tolist() == [1, 2, 3, 4, 9]
    assert first.completion.token_ids.dtype == np.int32 and first.completion.logprobs.dtype == np.float32
    assert [call.completion.finish_reason for call in trace.calls] == ["stop", "length"]
    assert {(c.completion.min_policy_version, c.completion.max_policy_version) for c in trace.calls} == {(3, 5)}
    assert first.delivered and first.dialect == "recorded" and first.tools == (TOOL,)
    rows = rows_from_rollout(rollout("r", trace.calls), advantage=1.0).rows
    assert [row.token_ids.tolist() for row in rows] == [[1, 2, 3, 4, 9, 5]]


def test_final_tool_calls_are_in_the_conversation_and_null_content_is_no_text() -> None:
    messages = conversation(trace_of_proxy(two_turns(), OVER).trace.calls)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[-1]["tool_calls"][0]["id"] == "c2" and messages[1]["content"] == ""


@pytest.mark.parametrize("field", ["completion_token_ids", "completion_tokens"])
def test_both_shapes_of_ids(field: str) -> None:
    changes = {"completion_token_ids": [], field: ["token_id:7", "token_id:0"]}
    trace = trace_of_proxy([entry(["token_id:1", 2], [7, 0], **changes)], OVER).trace
    assert trace.calls[0].completion.token_ids.tolist() == [7, 0]
    assert trace.prompt_ids(trace.calls[0]).tolist() == [1, 2]


def test_auxiliary_calls_are_not_the_conversation() -> None:
    title = entry(
        [8, 8],
        [9, 9, 9, 9],
        request={"messages": [{"role": "user", "content": "Title?"}]},
        response=answered({"content": "T"}),
    )
    trace = trace_of_proxy([title, *two_turns()], OVER).trace
    assert [call.role for call in trace.calls] == ["auxiliary", "agent", "agent"]
    assert trace.calls[2].parent_id == 1


def test_calls_of_a_training_trace_are_the_agents_and_its_masks_count() -> None:
    turns = [SimpleNamespace(model_dump=lambda e=e: {**e, "node_id": "n"}) for e in two_turns()]
    turns[0] = SimpleNamespace(model_dump=lambda: {**two_turns()[0], "loss_mask": [0, 0, 1, 0]})
    trace = trace_of_training(SimpleNamespace(turns=turns), OVER).trace
    assert {call.role for call in trace.calls} == {"agent"}
    made = rows_from_rollout(rollout("r", trace.calls), advantage=1.0)
    assert made.rows[0].loss_mask.tolist() == [False, False, True, False, False, True]
    assert made.rows[0].logprobs[3] == 0.0 and made.untrained == {"loss_mask": 1}


def test_masked_whole_calls_are_context_and_a_row_ends_with_what_trains() -> None:
    masked = [{**two_turns()[0], "loss_mask": [0, 0, 0, 1]}, {**two_turns()[1], "loss_mask": [0] * 6}]
    trace = trace_of_proxy(masked, OVER).trace
    made = rows_from_rollout(rollout("r", trace.calls), advantage=1.0)
    assert [row.token_ids.tolist() for row in made.rows] == [[1, 2, 3, 4]]
    assert made.untrained == {"loss_mask": 2}


def test_training_trace_without_its_requests_still_has_its_tokens() -> None:
    bare = [entry([1], [2], request=..., response=...), entry([1], [3], request=..., response=...)]
    trace = trace_of_training(bare, OVER).trace
    assert [call.role for call in trace.calls] == ["agent", "agent"]
    assert [call.completion.token_ids.tolist() for call in trace.calls] == [[2], [3]]


def test_conversation_whose_tokens_do_not_extend_is_a_branch() -> None:
    first, second = two_turns()
    trace = trace_of_proxy([first, {**second, "prompt_token_ids": [1, 2, 3, 99, 9]}], OVER).trace
    assert trace.calls[1].parent_id is None and trace.calls[1].branch_reason == "not_bridgeable"
    assert trace.prompt_ids(trace.calls[1]).tolist() == [1, 2, 3, 99, 9]


def test_requests_without_an_answer_are_counted_and_nothing_else() -> None:
    recorded = trace_of_proxy([entry([1], [], response=...), entry([1], [], response={"choices": []})], OVER)
    assert recorded.unanswered == 2 and recorded.trace == Trace(session_id="s", calls=())
    assert trace_of_proxy([], OVER).trace.calls == ()


BAD = [
    (None, "is NoneType, not a list"),
    ("text", "is str, not a list"),
    ([entry([1], [2]), "x"], r"entry 1 of 2 .* it is str, not a mapping"),
    ([entry([], [2])], "no prompt_token_ids"),
    ([entry(..., [2])], "no prompt_token_ids"),
    ([entry([1], [])], "an answer and no completion_token_ids"),
    ([entry([1], [2], per_token_logps=[])], "1 sampled tokens with 0 per_token_logps"),
    ([entry([1], [2], per_token_logps=...)], "1 sampled tokens with no per_token_logps"),
    ([entry([1], [2, 3], per_token_logps=[-1.0])], "2 sampled tokens with 1"),
    ([entry([1], [2], per_token_logps=["x"])], "not numbers"),
    ([entry([1], [2], per_token_logps=[float("nan")])], "only finite ones up to 0"),
    ([entry([1], [2], per_token_logps=[0.5])], "only finite ones up to 0"),
    ([entry([1], [2], per_token_logps=[float("-inf")])], "only finite ones up to 0"),
    ([entry([1], [1000])], "completion_token_ids holds 1000"),
    ([entry([1], [-1])], "holds -1"),
    ([entry([1], [True])], "holds True"),
    ([entry([1], [10**5000])], "holds a value of type int"),
    ([entry([1], ["token_id:" + "1" * 5000])], "holds 'token_id:1"),
    ([entry([1], [2], per_token_logps=[-(10**400)])], "not numbers"),
    ([entry([1], [2], per_token_logps=["-0.5"])], "not numbers: '-0.5'"),
    ([entry([1], [2], per_token_logps=[False])], "not numbers: False"),
    ([entry([1], [2], per_token_logps=[[-0.5]])], "not numbers"),
    ([entry([1], [2], per_token_logps=[None])], "not numbers: None"),
    ([entry([1], [2], loss_mask=[0, np.array([0, 1])])], "2 zeros and ones"),
    ([entry([1], [2], request=np.array([1, 2]))], "request is ndarray, not a mapping"),
    ([entry([1], [2], response={"choices": np.array([1, 2])})], "ndarray, not a mapping"),
    ([entry([1], [2], request={"messages": [{"role": "user", "content": "\ud800"}]})], "not a chat conversation"),
    ([entry([1], [2.0])], "holds 2.0"),
    ([entry([1], ["ls"])], "return-tokens-as-token-ids"),
    ([entry([1], ["token_id:-3"])], "holds 'token_id:-3'"),
    ([entry({"a": 1}, [2])], "prompt_token_ids is dict, not a list"),
    ([entry([1], [2], loss_mask=[1])], "2 zeros and ones"),
    ([entry([1], [2], loss_mask=[0, 2])], "2 zeros and ones"),
    ([entry([1], [2], loss_mask=[1, 1])], "trains tokens of the prompt"),
    ([entry([1], [2], request=[1])], "request is list, not a mapping"),
    ([entry([1], [2], response={"choices": [3]})], "not a mapping"),
    ([entry([1], [2], response={"choices": [{"message": 3}]})], "not a mapping"),
    ([entry([1], [2], request={"messages": [{"role": "wizard", "content": "x"}]})], "not a chat conversation"),
    ([entry([1], [2], request={"messages": 5})], "not a chat conversation"),
]


@pytest.mark.parametrize(("entries", "says"), BAD)
def test_malformed_trace_is_refused_with_its_place(entries: Any, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        trace_of_proxy(entries, OVER)
    if isinstance(entries, list):
        with pytest.raises(TraceError, match=says):
            trace_of_training(SimpleNamespace(turns=entries), OVER)


STRANGE = (10**400, -(10**400), "token_id:" + "1" * 5000, "\ud800", np.array([1, 2]), np.float32(-1), b"\xff", {1})
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2000) | st.floats() | st.text(max_size=5) | st.sampled_from(STRANGE),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["messages", "role", "content", "choices", "message", "tools"]), inner)
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(st.sampled_from(list(entry([1], [2]))), junk, max_size=3))
def test_whatever_a_recorder_hands_over_is_a_trace_or_a_trace_error(changes: dict[str, Any]) -> None:
    try:
        trace_of_proxy([entry([1], [2]), {**entry([1], [2]), **changes}], OVER)
    except TraceError:
        return


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_every_recorded_token_is_kept_exactly(data: st.DataObject) -> None:
    """However conversations branch, each entry's prompt, completion and logprobs come back bit for bit."""
    numbers = st.integers(0, 5)
    entries: list[dict[str, Any]] = []
    streams: list[tuple[list[int], list[Any]]] = [([], [])]
    for _ in range(data.draw(st.integers(1, 6))):
        ids, said = data.draw(st.sampled_from(streams))
        # Some recorders render history again: then the prompt is not what it extends.
        kept = ids[: data.draw(st.integers(0, len(ids)))] if data.draw(st.booleans()) else ids
        prompt = kept + data.draw(st.lists(numbers, min_size=1, max_size=3))
        sampled = data.draw(st.lists(numbers, min_size=1, max_size=3))
        messages = [*said, {"role": "user", "content": data.draw(st.sampled_from("abc"))}]
        reply = {"role": "assistant", "content": data.draw(st.sampled_from("xyz"))}
        logprobs = data.draw(st.lists(st.floats(-9, 0, width=32), min_size=len(sampled), max_size=len(sampled)))
        entries.append(
            entry(prompt, sampled, request={"messages": messages}, response=answered(reply), per_token_logps=logprobs)
        )
        streams.append((prompt + sampled, [*messages, reply]))
    trace = trace_of_proxy(entries, OVER).trace
    for call, recorded in zip(trace.calls, entries, strict=True):
        assert trace.prompt_ids(call).tolist() == recorded["prompt_token_ids"]
        assert call.completion.token_ids.tolist() == recorded["completion_token_ids"]
        assert call.completion.logprobs.tolist() == recorded["per_token_logps"]
    made = rows_from_rollout(rollout("r", trace.calls), advantage=1.0)
    trained = sum(int(row.loss_mask.sum()) for row in made.rows) + sum(made.untrained.values())
    assert trained == sum(len(recorded["completion_token_ids"]) for recorded in entries)


def test_recorded_mask_survives_the_run_directory(tmp_path: Any) -> None:
    from longrein.rollout.group import RewardSettings, score_group
    from longrein.store import RunStore, read_groups
    from tests.traces import TASK

    masked = [{**two_turns()[0], "loss_mask": [0, 0, 0, 1]}, two_turns()[1]]
    trace = trace_of_proxy(masked, OVER).trace
    group = score_group("g000001", TASK, [rollout("a", trace.calls)], RewardSettings())
    RunStore(tmp_path).append(group)
    (read,) = read_groups(tmp_path)
    kept = [call.loss_mask for call in read.rollouts[0].trace.calls]
    assert kept[0] is not None and kept[0].tolist() == [False, True] and kept[1] is None
    assert msgspec.structs.replace(read.rollouts[0].trace.calls[1]).loss_mask is None
