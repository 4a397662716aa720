"""Trace tree -> training rows: root-to-leaf paths, in which every sampled token trains once or says why not.

Ids, mask and logprobs are concatenations of what was captured; nothing is tokenised here (invariants 1 and 2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np

from longrein.errors import TraceError
from longrein.types import F32, I32, ROLE_WEIGHTS, Call, Role, Rollout, Row, Trace

MASKED = "loss_mask"


class RowSet(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one rollout, and where its other sampled tokens went."""

    rows: tuple[Row, ...]
    untrained: dict[str, int]
    """Reason -> sampled tokens that train nowhere.

    Reasons: ``undelivered``, ``train_turn_fn`` (it turned the call down), ``loss_mask`` (whoever recorded the call
    masked the tokens), or the name of a role whose weight is 0.
    """
    realigned_calls: int = 0
    """Calls that were kept in an earlier call's row although their prompt had drifted from it."""


def rows_from_rollout(
    rollout: Rollout,
    *,
    advantage: float,
    fork_threshold_tokens: int = 0,
    role_weights: Mapping[Role, float] = ROLE_WEIGHTS,
) -> RowSet:
    """Cut a rollout's trace into rows.

    A call that lies on several paths trains in the first of them; a path on which nothing new trains gives no row,
    and a row ends with its last trained token. A row has one weight: a path whose roles weigh differently gives one
    row for each weight.

    Args:
        rollout: one finished attempt.
        advantage: the rollout's advantage inside its group; every row carries it.
        fork_threshold_tokens: for engines that render prompts themselves, where parents are unknown. A root whose
            prompt is an earlier call's prompt + completion, but for a drift of at most so many tokens, stays in that
            call's row: its new tokens are appended to the exact earlier stream. Which tokens train never changes.
        role_weights: weight of each role's tokens, for all roles. Calls of weight 0 stay as context and are counted as
            untrained.

    Raises:
        TraceError: unknown parents, ids below zero, or arrays of different lengths.
    """
    _check(rollout.trace)
    aligned = _align(rollout.trace, fork_threshold_tokens)
    reasons = {call.call_id: _left_out(call, role_weights) for call in rollout.trace.calls}
    untrained: dict[str, int] = {}
    for call in rollout.trace.calls:
        if reason := reasons[call.call_id]:
            untrained[reason] = untrained.get(reason, 0) + call.completion.token_ids.size
        elif call.loss_mask is not None:
            untrained[MASKED] = untrained.get(MASKED, 0) + int((~call.loss_mask).sum())
    pending = {call_id for call_id, reason in reasons.items() if not reason}
    rows: list[Row] = []
    for path in aligned.trace.paths():
        fresh = [call for call in path if call.call_id in pending and call.completion.token_ids.size]
        pending.difference_update(call.call_id for call in fresh)
        # dict, not set: rows come in the order in which their first tokens were sampled.
        for weight in dict.fromkeys(role_weights[call.role] for call in fresh):
            trained = frozenset(call.call_id for call in fresh if role_weights[call.role] == weight)
            rows.append(_row(rollout, path, trained, advantage=advantage, weight=weight))
    return RowSet(rows=tuple(rows), untrained=untrained, realigned_calls=aligned.realigned_calls)


def _left_out(call: Call, role_weights: Mapping[Role, float]) -> str:
    """Why a call does not train; empty when it does."""
    if not call.delivered:
        return "undelivered"
    if not call.trains:
        return "train_turn_fn"
    if call.loss_mask is not None and not call.loss_mask.any():
        return MASKED
    return "" if role_weights[call.role] else call.role


def _row(rollout: Rollout, path: tuple[Call, ...], trained: frozenset[int], *, advantage: float, weight: float) -> Row:
    last = max(index for index, call in enumerate(path) if call.call_id in trained)
    path = path[: last + 1]
    token_ids = np.concatenate([part for call in path for part in (call.prompt_delta, call.completion.token_ids)])
    if token_ids.min() < 0:
        raise TraceError(
            f"session {rollout.trace.session_id}: token {int(np.argmax(token_ids < 0))} on the path to call "
            f"{path[-1].call_id} is below zero; rows need the ids that the engine saw"
        )
    loss_mask = np.zeros(token_ids.size, np.bool_)
    logprobs: F32 = np.zeros(token_ids.size, np.float32)
    position = 0
    for call in path:
        start = position + call.prompt_delta.size
        position = start + call.completion.token_ids.size
        if call.call_id in trained:
            loss_mask[start:position] = True if call.loss_mask is None else call.loss_mask
            logprobs[start:position] = call.completion.logprobs
            if call.loss_mask is not None:
                logprobs[start:position][~call.loss_mask] = 0
    end = int(np.flatnonzero(loss_mask)[-1]) + 1
    completions = [call.completion for call in path if call.call_id in trained]
    return Row(
        rollout_id=rollout.rollout_id,
        group_id=rollout.group_id,
        token_ids=token_ids[:end].astype(np.int32, copy=False),
        loss_mask=loss_mask[:end],
        logprobs=logprobs[:end],
        advantage=advantage,
        weight=weight,
        min_policy_version=min(completion.min_policy_version for completion in completions),
        max_policy_version=max(completion.max_policy_version for completion in completions),
    )


def _check(trace: Trace) -> None:
    for index, call in enumerate(trace.calls):
        where = f"session {trace.session_id}, call {index}"
        if call.call_id != index:
            raise TraceError(f"{where}: its call_id is {call.call_id}; calls must be numbered by position")
        if call.parent_id is not None and not 0 <= call.parent_id < index:
            raise TraceError(f"{where}: parent {call.parent_id} is not an earlier call")
        ids, logprobs = call.completion.token_ids, call.completion.logprobs
        if ids.ndim != 1 or call.prompt_delta.ndim != 1 or ids.shape != logprobs.shape:
            raise TraceError(
                f"{where}: token ids {ids.shape}, logprobs {logprobs.shape} and prompt {call.prompt_delta.shape} must "
                "be one-dimensional, with one logprob for each sampled token"
            )
        if call.loss_mask is not None and call.loss_mask.shape != ids.shape:
            raise TraceError(f"{where}: loss_mask {call.loss_mask.shape} for {ids.shape} sampled tokens")
        if call.parent_id is None and not call.prompt_delta.size:
            raise TraceError(f"{where}: it starts a branch with an empty prompt, so its first token has no context")


# --- prompts whose parent is unknown ---------------------------------------------------------------------------------


class _Aligned(msgspec.Struct, frozen=True, kw_only=True):
    trace: Trace
    realigned_calls: int


class _Fit(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt seen as continuation of an earlier call."""

    parent_id: int
    new_from: int
    """Where the prompt's new tokens start."""
    drift: int
    """Tokens that differ between the earlier stream and its repetition in the prompt; 0 is an exact extension."""


def _align(trace: Trace, threshold: int) -> _Aligned:
    """Give every root that continues an earlier call its parent, in the order of the calls."""
    if sum(call.parent_id is None for call in trace.calls) <= 1:
        return _Aligned(trace=trace, realigned_calls=0)
    streams = _Streams(trace)
    calls: list[Call] = []
    realigned = 0
    for call in trace.calls:
        fit = _find_parent(streams, calls, call, threshold) if call.parent_id is None else None
        if fit is not None:
            realigned += fit.drift > 0
            delta = call.prompt_delta[fit.new_from :]
            call = msgspec.structs.replace(call, parent_id=fit.parent_id, prompt_delta=delta)  # noqa: PLW2901
        calls.append(call)
    return _Aligned(trace=msgspec.structs.replace(trace, calls=tuple(calls)), realigned_calls=realigned)


class _Streams:
    """The ids that the engine held after each call, made only when asked for."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._made: dict[int, I32] = {}

    def after(self, call_id: int) -> I32:
        if call_id not in self._made:
            call = self._trace.calls[call_id]
            self._made[call_id] = np.concatenate([self._trace.prompt_ids(call), call.completion.token_ids])
        return self._made[call_id]

    def line(self, call_id: int) -> Iterator[Call]:
        """A call and its ancestors as captured, youngest first."""
        parent: int | None = call_id
        while parent is not None:
            call = self._trace.calls[parent]
            yield call
            parent = call.parent_id

    def tips(self, before: int) -> list[int]:
        """Calls before ``before`` that no captured call before it extends, youngest first."""
        calls = self._trace.calls[:before]
        inner = {call.parent_id for call in calls}
        return [call.call_id for call in reversed(calls) if call.call_id not in inner]


def _find_parent(streams: _Streams, aligned: list[Call], call: Call, threshold: int) -> _Fit | None:
    """The exact parent if there is one, else the one with the least drift within the threshold.

    Ends of rows are tried first: a conversation that goes on needs one comparison a call.
    """
    inner = {earlier.parent_id for earlier in aligned}
    tips = streams.tips(call.call_id)
    for candidates in ([tip for tip in tips if tip not in inner], [tip for tip in tips if tip in inner]):
        fits: list[_Fit] = []
        for tip in candidates:
            fit = _fit(streams, tip, call.prompt_delta, threshold)
            if fit is not None and fit.drift == 0:
                return fit
            if fit is not None:
                fits.append(fit)
        if fits:
            return min(fits, key=lambda fit: fit.drift)
    return None


def _fit(streams: _Streams, tip: int, prompt: I32, threshold: int) -> _Fit | None:
    stream = streams.after(tip)
    same = _common_prefix(stream, prompt)
    drifted = None
    if same < stream.size and threshold:
        drifted = _drifted_fit(next(streams.line(tip)), stream, prompt, same=same, threshold=threshold)
    if drifted is not None:
        return drifted
    end = stream.size
    for call in streams.line(tip):
        if end <= same:
            return _Fit(parent_id=call.call_id, new_from=end, drift=0)
        end -= call.completion.token_ids.size + call.prompt_delta.size
    return None


def _drifted_fit(earlier: Call, stream: I32, prompt: I32, *, same: int, threshold: int) -> _Fit | None:
    """Find where a re-rendered ``stream`` ends in ``prompt``, given that they differ from position ``same`` on.

    The stream's tail is looked for around its expected place. One half of the earlier call must be intact, its prompt
    (the answer was re-rendered) or its answer (older history was): otherwise short conversations that share only a
    system prompt would be taken for one.
    """
    tail = stream.size - same
    sampled = earlier.completion.token_ids.size
    best = _Fit(parent_id=earlier.call_id, new_from=same, drift=tail)
    best_shared = 0
    first = max(same, stream.size - threshold)
    window = prompt[first : stream.size + threshold]
    for end in (np.flatnonzero(window == stream[-1]) + first + 1).tolist():
        shared = _common_suffix(stream[same:], prompt[same:end])
        drift = max(tail, end - same) - shared
        if drift < best.drift:
            best, best_shared = _Fit(parent_id=earlier.call_id, new_from=end, drift=drift), shared
    half_intact = same >= stream.size - sampled or 0 < sampled <= best_shared
    if best.drift > threshold or best.new_from >= prompt.size or not half_intact:
        return None
    return best


def _common_prefix(left: I32, right: I32) -> int:
    size = min(left.size, right.size)
    if np.array_equal(left[:size], right[:size]):
        return size
    return int(np.argmax(left[:size] != right[:size]))


def _common_suffix(left: I32, right: I32) -> int:
    return _common_prefix(left[::-1], right[::-1])
