"""One attempt at a task, whoever drives it: made again on a fault of the infrastructure, and concluded as a rollout."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from longrein.errors import boundary
from longrein.gateway.gateway import Gateway
from longrein.gateway.session import SessionRecord
from longrein.tasks.verdicts import finite, finite_of
from longrein.types import Endpoint, Failure, Finding, Rollout, Score, StatusName, Task, Trace


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout to make."""

    rollout_id: str
    group_id: str
    task: Task
    seed: int
    group_seed: int = 0
    """The same for all attempts of one group, for environments that choose their task by it."""


class Driver(Protocol):
    """Turns an attempt into a rollout. A bad rollout is data; only bugs and cancellation are raised."""

    async def run(self, attempt: Attempt) -> Rollout:
        """Run one session to its end. Everything of it is closed on return and on cancellation."""
        ...


class Ending:
    """What is known of a session when it ends; filled in as far as it got."""

    def __init__(self) -> None:
        self.record: SessionRecord | None = None
        self.score: Score | None = None
        self.timed_out = False
        self.truncated = False
        """Cut off by something else than the gateway, whose record says so itself."""
        self.last_words = ""
        """Of an agent that never called the model: nobody else will tell why."""
        self.findings: tuple[Finding, ...] = ()
        """Of the agent; those of the judge are in the score."""
        self.metrics: dict[str, float] = {}


async def retried(once: Callable[[str], Awaitable[Rollout]], attempt: Attempt, max_retries: int) -> Rollout:
    """Make an attempt, and again while a fault of the infrastructure ends it, at most ``max_retries`` times.

    Args:
        once: makes it in a session of the given id.
        attempt: says what the first session is called.
        max_retries: tries after the first.
    """
    rollout = await once(attempt.rollout_id)
    retries = 0
    while _worth_a_retry(rollout) and retries < max_retries:
        retries += 1
        rollout = await once(f"{attempt.rollout_id}-r{retries}")
    return msgspec.structs.replace(rollout, metrics={**rollout.metrics, "retries": float(retries)})


async def at_gateway(
    gateway: Gateway, attempt: Attempt, session_id: str, judge: Callable[[Endpoint, Ending], Awaitable[None]]
) -> Rollout:
    """Make an attempt with an endpoint of its own, which is closed on return.

    Args:
        gateway: where the session is opened.
        attempt: what is made.
        session_id: of the session.
        judge: runs it and fills in the ending; infrastructure faults that it raises make a failed rollout.
    """
    started_s = time.monotonic()
    endpoint = gateway.open_session(session_id)
    ending = Ending()
    try:
        with boundary() as caught:
            await judge(endpoint, ending)
    finally:
        ending.record = ending.record or await gateway.close_session(session_id)
    rollout = concluded(attempt, session_id, ending, caught.failure, time.monotonic() - started_s)
    return _without(endpoint.api_key, rollout)


def concluded(attempt: Attempt, session_id: str, ending: Ending, failure: Failure | None, duration_s: float) -> Rollout:
    """The rollout that an attempt came to."""
    record = ending.record or SessionRecord(
        trace=Trace(session_id=session_id, calls=()), truncated=False, failure=None, counters={}
    )
    judged = _looked_at(ending.score) if ending.score else Score(reward=None, reason="not judged")
    score = msgspec.structs.replace(judged, findings=())
    failure = failure or record.failure or _no_calls(record, ending.last_words) or _not_judged(score)
    if failure is not None:
        score = Score(reward=None, metrics=score.metrics, reason=failure.message)
    return Rollout(
        rollout_id=attempt.rollout_id,
        group_id=attempt.group_id,
        task_id=attempt.task.task_id,
        seed=attempt.seed,
        status=_status(failure, timed_out=ending.timed_out, truncated=ending.truncated or record.truncated),
        trace=record.trace,
        score=score,
        findings=(*ending.findings, *judged.findings),
        failure=failure,
        metrics={
            **record.counters,
            "duration_s": duration_s,
            "delivered_token_fraction": record.trace.delivered_token_fraction,
            "calls": float(len(record.trace.calls)),
            **ending.metrics,
        },
    )


def _looked_at(score: Score) -> Score:
    """Who judged may be somebody else's code: a reward that is no finite number is none, and none has a reason."""
    reward, reason = finite(score.reward), score.reason
    if reward is None and not reason:
        what = "no reward, and no reason" if score.reward is None else "a reward that is no finite number"
        reason = f"the verifier gave {what}"
    return msgspec.structs.replace(score, reward=reward, metrics=finite_of(score.metrics), reason=reason)


def _without(key: str, rollout: Rollout) -> Rollout:
    """Agents print the address they call and name their files. Their key is dead by now, but none is written down."""
    findings = tuple(msgspec.structs.replace(one, detail=one.detail.replace(key, "<key>")) for one in rollout.findings)
    rollout = msgspec.structs.replace(rollout, findings=findings)
    if rollout.failure is None:
        return rollout
    message = rollout.failure.message.replace(key, "<key>")
    return msgspec.structs.replace(
        rollout,
        failure=msgspec.structs.replace(rollout.failure, message=message),
        score=msgspec.structs.replace(rollout.score, reason=message),
    )


def _worth_a_retry(rollout: Rollout) -> bool:
    return rollout.failure is not None and rollout.failure.kind in ("sandbox", "harness", "engine", "session")


def _no_calls(record: SessionRecord, last_words: str) -> Failure | None:
    if record.trace.calls or record.truncated:
        return None
    message = "the agent ended without one successful call to the model"
    return Failure(kind="no_calls", message=f"{message}; {last_words}" if last_words else message)


def _not_judged(score: Score) -> Failure | None:
    return Failure(kind="verifier", message=score.reason) if score.reward is None else None


def _status(failure: Failure | None, *, timed_out: bool, truncated: bool) -> StatusName:
    if failure is not None:
        # A first call that the time limit cut off is the model's or the limit's doing, not a fault.
        return "timed_out" if timed_out and failure.kind == "no_calls" else "failed"
    if timed_out:
        return "timed_out"
    return "truncated" if truncated else "completed"
