"""Invariant 2, rows part: every sampled token trains in exactly one row or says why not; ids are never changed."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.errors import TraceError
from longrein.rows import RowSet, rows_from_rollout
from longrein.types import ROLE_WEIGHTS, Call, Role, Rollout, Row, Trace
from tests.traces import call, rollout

EOS = 1
ROLES: list[Role] = ["agent", "subagent", "compaction", "auxiliary", "retry"]


@st.composite
def forests(draw: st.DrawFn) -> Rollout:
    """A random forest in which every token id occurs once, so that a token says which call it came from."""
    fresh = count(10)
    calls: list[Call] = []
    for call_id in range(draw(st.integers(1, 9))):
        parent = draw(st.sampled_from([None, *range(call_id)]))
        prompt = [next(fresh) for _ in range(draw(st.integers(0 if parent is not None else 1, 4)))]
        sampled = [next(fresh) for _ in range(draw(st.integers(0, 4)))]
        made = call(
            call_id,
            parent,
            prompt,
            sampled,
            role=draw(st.sampled_from(ROLES)),
            trains=draw(st.booleans()) or draw(st.booleans()),
            delivered=draw(st.booleans()) or draw(st.booleans()),
            min_policy_version=draw(st.integers(0, 3)),
            max_policy_version=5,
        )
        # Logprobs that say which token they belong to.
        logprobs = -made.completion.token_ids.astype(np.float32)
        calls.append(
            msgspec.structs.replace(made, completion=msgspec.structs.replace(made.completion, logprobs=logprobs))
        )
    return rollout("r", calls)


def trained_ids(rows: RowSet) -> Counter[int]:
    return Counter(int(token) for row in rows.rows for token in row.token_ids[row.loss_mask])


@settings(deadline=None, max_examples=150)
@given(forests(), st.fixed_dictionaries({role: st.sampled_from([0.0, 0.5, 1.0]) for role in ROLES}))
def test_every_sampled_token_trains_once_or_has_a_reason(attempt: Rollout, weights: dict[Role, float]) -> None:
    made = rows_from_rollout(attempt, advantage=0.5, role_weights=weights)
    sampled = {int(token): item for item in attempt.trace.calls for token in item.completion.token_ids}
    chosen = {token: item for token, item in sampled.items() if item.delivered and item.trains}
    trains = {token: weights[item.role] for token, item in chosen.items() if weights[item.role]}

    assert trained_ids(made) == Counter(trains.keys())
    weighed = {int(token): row.weight for row in made.rows for token in row.token_ids[row.loss_mask]}
    assert weighed == trains
    untrained = Counter(item.role for item in chosen.values() if not weights[item.role])
    untrained["undelivered"] = sum(not item.delivered for item in sampled.values())
    untrained["train_turn_fn"] = sum(item.delivered and not item.trains for item in sampled.values())
    assert +Counter(made.untrained) == +untrained


def test_a_path_of_two_weights_is_two_rows_and_every_token_trains_once() -> None:
    calls = [call(0, None, [5], [6]), call(1, 0, [7], [8], role="compaction"), call(2, 1, [9], [10])]
    weights: dict[Role, float] = {**ROLE_WEIGHTS, "compaction": 0.25}
    first, second = rows_from_rollout(rollout("r", calls), advantage=1.0, role_weights=weights).rows
    assert (first.weight, first.token_ids[first.loss_mask].tolist()) == (1.0, [6, 10])
    assert (second.weight, second.token_ids[second.loss_mask].tolist()) == (0.25, [8])
    assert second.token_ids.tolist() == [5, 6, 7, 8]


@settings(deadline=None, max_examples=150)
@given(forests())
def test_rows_are_prefixes_of_what_the_engine_held(attempt: Rollout) -> None:
    streams = [
        np.concatenate([attempt.trace.prompt_ids(item), item.completion.token_ids]).tolist()
        for item in attempt.trace.calls
    ]
    for row in rows_from_rollout(attempt, advantage=0.5).rows:
        assert row.token_ids.tolist() in streams
        assert (row.token_ids.dtype, row.logprobs.dtype, row.loss_mask.dtype) == (np.int32, np.float32, np.bool_)
        assert row.loss_mask[-1], "a row ends with its last trained token"
        np.testing.assert_array_equal(row.logprobs, np.where(row.loss_mask, -row.token_ids, 0))
        versions = [
            item.completion.min_policy_version
            for item in attempt.trace.calls
            if set(item.completion.token_ids.tolist()) & set(row.token_ids[row.loss_mask].tolist())
        ]
        assert row.min_policy_version == min(versions)
        assert (row.max_policy_version, row.advantage, row.rollout_id) == (5, 0.5, "r")


def test_a_conversation_is_one_row() -> None:
    calls = [call(0, None, [5, 6], [7, 1]), call(1, 0, [8], [9, 1]), call(2, 1, [10], [11, 1])]
    (row,) = rows_from_rollout(rollout("r", calls), advantage=1.0).rows
    assert row.token_ids.tolist() == [5, 6, 7, 1, 8, 9, 1, 10, 11, 1]
    assert row.loss_mask.tolist() == [False, False, True, True, False, True, True, False, True, True]


def test_two_interleaved_conversations_are_two_rows() -> None:
    calls = [call(0, None, [5, 6], [7]), call(1, None, [5, 66], [77])]
    for turn in range(1, 10):
        calls += [call(2 * turn, 2 * turn - 2, [8], [9]), call(2 * turn + 1, 2 * turn - 1, [8], [9])]
    assert len(rows_from_rollout(rollout("r", calls), advantage=1.0).rows) == 2


def test_a_fork_trains_its_trunk_once() -> None:
    calls = [call(0, None, [5], [6]), call(1, 0, [7], [8]), call(2, 0, [9], [10])]
    first, second = rows_from_rollout(rollout("r", calls), advantage=1.0).rows
    assert first.loss_mask.tolist() == [False, True, False, True]
    assert second.token_ids.tolist() == [5, 6, 9, 10]
    assert second.loss_mask.tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ([call(0, None, [5], [6]), call(1, 4, [7], [8])], "parent 4"),
        ([call(0, 0, [5], [6])], "parent 0"),
        ([call(1, None, [5], [6])], "numbered by position"),
        ([call(0, None, [], [6])], "empty prompt"),
        ([call(0, None, [5], [-6])], "below zero"),
        ([call(0, None, [-5], [6])], "below zero"),
    ],
)
def test_malformed_traces_are_refused(broken: list[Call], says: str) -> None:
    with pytest.raises(TraceError, match=says):
        rows_from_rollout(rollout("r", broken), advantage=1.0)


def test_a_logprob_too_few_is_refused() -> None:
    good = call(0, None, [5], [6, 7])
    bad = msgspec.structs.replace(good.completion, logprobs=np.zeros(1, np.float32))
    with pytest.raises(TraceError, match="one logprob"):
        rows_from_rollout(rollout("r", [msgspec.structs.replace(good, completion=bad)]), advantage=1.0)


# --- engines that render themselves: every call is a root with its whole prompt -----------------------------------


def as_roots(calls: list[Call]) -> list[Call]:
    trace = Trace(session_id="s", calls=tuple(calls))
    return [msgspec.structs.replace(item, parent_id=None, prompt_delta=trace.prompt_ids(item)) for item in calls]


@settings(deadline=None, max_examples=80)
@given(forests())
def test_unknown_parents_train_the_same_tokens(attempt: Rollout) -> None:
    """Where prompts are exact repetitions, only the number of rows may differ, never what trains."""
    blind = msgspec.structs.replace(
        attempt, trace=msgspec.structs.replace(attempt.trace, calls=tuple(as_roots(list(attempt.trace.calls))))
    )
    known, found = rows_from_rollout(attempt, advantage=1.0), rows_from_rollout(blind, advantage=1.0)
    assert trained_ids(found) == trained_ids(known)
    assert len(found.rows) <= len(known.rows)
    assert found.realigned_calls == 0


class Chat:
    """A conversation whose server renders history anew for each call, and not quite as it was sampled."""

    def __init__(self, draw: Any, start: int, drift: int) -> None:
        self._fresh = count(start)
        self._draw = draw
        self._drift = drift
        self.history = self._message()
        self.sampled: list[int] = []

    def _message(self) -> list[int]:
        return [*[next(self._fresh) for _ in range(self._draw(st.integers(8, 12)))], EOS]

    def turn(self, call_id: int) -> Call:
        prompt, answer = list(self.history), self._message()
        self.sampled += answer
        self.history = [*prompt, *self._rendered(answer), *self._message()]
        return call(call_id, None, prompt, answer)

    def _rendered(self, answer: list[int]) -> list[int]:
        at = self._draw(st.integers(0, len(answer) - 1 - self._drift))
        return [*answer[:at], *[next(self._fresh) for _ in range(self._drift)], *answer[at + self._drift :]]


@settings(deadline=None, max_examples=80)
@given(st.data(), st.integers(0, 5), st.integers(2, 6))
def test_small_drift_stays_in_its_row_and_changes_nothing_that_trains(
    data: st.DataObject, drift: int, turns: int
) -> None:
    first, second = Chat(data.draw, 1000, drift), Chat(data.draw, 9000, drift)
    calls: list[Call] = []
    for _ in range(turns):
        calls += [first.turn(len(calls)), second.turn(len(calls) + 1)]
    attempt = rollout("r", calls)

    realigned = rows_from_rollout(attempt, advantage=1.0, fork_threshold_tokens=6)
    strict = rows_from_rollout(attempt, advantage=1.0, fork_threshold_tokens=0)

    assert len(realigned.rows) == 2, "two interleaved conversations"
    assert len(strict.rows) == (2 if drift == 0 else 2 * turns)
    assert trained_ids(realigned) == trained_ids(strict) == Counter(first.sampled + second.sampled)
    assert realigned.realigned_calls == (0 if drift == 0 else 2 * (turns - 1))
    for row, chat in zip(realigned.rows, (first, second), strict=True):
        assert row.token_ids[row.loss_mask].tolist() == chat.sampled, "in the order in which they were sampled"
        assert row.token_ids.size == len(chat.history) - _tail(chat), "nothing of the re-rendered history is doubled"


def _tail(chat: Chat) -> int:
    """Length of the last message, which no call has answered."""
    ends = [index for index, token in enumerate(chat.history[:-1]) if token == EOS]
    return len(chat.history) - 1 - ends[-1]


def test_drift_beyond_the_threshold_is_a_new_row() -> None:
    calls = [
        call(0, None, [5, 6, 7], [20, 21, 22, 23, EOS]),
        call(1, None, [5, 6, 7, 30, 31, 32, 23, EOS, 8, 9], [40]),
    ]
    attempt = rollout("r", calls)
    assert len(rows_from_rollout(attempt, advantage=1.0, fork_threshold_tokens=2).rows) == 2
    (row,) = rows_from_rollout(attempt, advantage=1.0, fork_threshold_tokens=3).rows
    assert row.token_ids.tolist() == [5, 6, 7, 20, 21, 22, 23, EOS, 8, 9, 40]


def test_a_short_stranger_is_not_taken_for_a_continuation() -> None:
    """Both fit in the threshold, and share a system prompt; a title request is still not a turn of the chat."""
    calls = [call(0, None, [5, 6, 7, EOS], [20, EOS]), call(1, None, [5, 6, 99, EOS], [30, EOS])]
    assert len(rows_from_rollout(rollout("r", calls), advantage=1.0, fork_threshold_tokens=1024).rows) == 2


def test_the_same_request_again_is_a_sibling() -> None:
    calls = [call(0, None, [5, 6], [20, EOS]), call(1, None, [5, 6], [30, EOS])]
    assert len(rows_from_rollout(rollout("r", calls), advantage=1.0, fork_threshold_tokens=1024).rows) == 2


def test_a_row_is_a_row() -> None:
    (row,) = rows_from_rollout(rollout("r", [call(0, None, [5], [6])]), advantage=-1.0).rows
    assert isinstance(row, Row)
    assert row.weight == 1.0
