"""The rollout worker's own process: makes groups while admission allows, writes them down, hands them over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import msgspec

from longrein.errors import LongreinError, WorkerError
from longrein.rollout.attempt import Attempt
from longrein.rollout.beginning import Backlog, Beginning
from longrein.rollout.buffer import AdmissionRule, Ledger
from longrein.rollout.driving import PolicyClock
from longrein.rollout.group import RewardSettings
from longrein.rollout.pass_rate import pass_rate
from longrein.rollout.pipe import Outbox
from longrein.rollout.runtime import RolloutRuntime, RuntimeSettings, open_runtime
from longrein.rollout.schedule import Curriculum, GroupPlan, Plans, TaskOrder, Uniform, group_number, outcome_of
from longrein.rollout.settle import Settler
from longrein.rollout.together import together
from longrein.rollout.turns import TurnSettings
from longrein.sole_writer import sole_writer
from longrein.store import ROLLOUTS, RunStore
from longrein.types import Rollout, RolloutGroup, Task

MAX_UNSCORABLE_GROUPS = 8
"""So many groups in a row without one scored rollout, and the worker stops with the reason."""
LAST_WRITER_S = 20.0
"""For the worker of a run that was killed a moment ago to end."""


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the process is told; picklable."""

    runtime: RuntimeSettings
    tasks: tuple[Task, ...]
    rewards: RewardSettings
    turns: TurnSettings
    num_generations: int
    admission: AdmissionRule
    beginning: Beginning
    output_dir: str
    curriculum: Curriculum = Uniform()
    seed: int = 0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """From the trainer's process to ours."""

    kind: Literal["version", "stop"]
    policy_version: int = 0
    taken: int = 0
    """Groups taken when the version was new: by the time this is read, the trainer may have taken more."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """From our process to the trainer's."""

    kind: Literal["ready", "error"]
    message: str = ""


class WorkerEnds(msgspec.Struct, frozen=True, kw_only=True):
    """The rollout process's ends of everything that connects it with the trainer's; they travel at its start."""

    groups: Connection
    metrics: Connection
    control: Connection
    ledger: Ledger


def worker_main(settings: WorkerSettings, ends: WorkerEnds) -> None:
    """Entry point of the spawned process. Ctrl-C is the parent's business; its end (EOF) stops us."""
    # A terminal's Ctrl-C goes to the group in its foreground. Not just ignored: agents would inherit that, and tests of
    # theirs that send SIGINT would fail here alone.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with sole_writer(Path(settings.output_dir) / ROLLOUTS, LAST_WRITER_S):
            asyncio.run(_Producer(settings, ends).run())
    except LongreinError as error:
        _report(ends.control, Report(kind="error", message=f"{type(error).__name__}: {error}"))
    except BaseException as error:
        reason = f"{type(error).__name__}: {error} (unexpected; its traceback is in the output above)"
        _report(ends.control, Report(kind="error", message=reason))
        raise


def _report(control: Connection, report: Report) -> None:
    try:
        control.send(report)
    except OSError:
        # The parent is gone: there is nobody left to tell.
        return


class _Producer:
    def __init__(self, settings: WorkerSettings, ends: WorkerEnds) -> None:
        self._settings = settings
        self._groups = Outbox(ends.groups)
        self._metrics = Outbox(ends.metrics)
        self._control = ends.control
        self._ledger = ends.ledger
        self._slots = asyncio.Semaphore(settings.runtime.max_inflight)
        self._inflight = 0
        self._started = 0
        self._finished = 0
        self._taken_at_version = 0
        self._unscorable_in_a_row = 0
        self._clock = PolicyClock()
        self._wake = asyncio.Event()
        self._stopping = False

    async def run(self) -> None:
        """Produce until told to stop."""
        loop = asyncio.get_running_loop()
        backlog = self._take_backlog()
        settler = Settler(RunStore(Path(self._settings.output_dir)), self._settings.rewards, self._settings.turns)
        async with open_runtime(self._settings.runtime) as runtime:
            self._clock = runtime.clock
            loop.add_reader(self._control.fileno(), self._read_orders)
            # Sent before we were there: the first group starts under the version that is served.
            self._read_orders()
            _report(self._control, Report(kind="ready"))
            groups: set[asyncio.Task[None]] = set()
            try:
                await self._produce(runtime, settler, groups, backlog)
            finally:
                loop.remove_reader(self._control.fileno())
                for group in groups:
                    group.cancel()
                await asyncio.gather(*groups, return_exceptions=True)
                settler.close()

    def _read_orders(self) -> None:
        try:
            while self._control.poll():
                order: Order = self._control.recv()
                if order.kind == "stop":
                    self._stopping = True
                else:
                    self._taken_at_version = order.taken
                    self._clock.policy_version = order.policy_version
        except (EOFError, OSError):
            self._stopping = True
        self._wake.set()

    def _take_backlog(self) -> Backlog:
        """Hand over what waits on disk; it counts as started here."""
        settings = self._settings

        def fresh_order() -> TaskOrder:
            return settings.curriculum.order(settings.tasks, settings.seed)

        backlog = settings.beginning.prepare(Path(settings.output_dir), fresh_order)
        for group in backlog.waiting:
            self._groups.put(group)
        self._started = self._finished = len(backlog.waiting)
        restored, lost = float(len(backlog.waiting)), float(backlog.lost_groups)
        self._metrics.put({"count/restored_groups": restored, "count/lost_groups": lost})
        return backlog

    async def _produce(
        self, runtime: RolloutRuntime, settler: Settler, groups: set[asyncio.Task[None]], backlog: Backlog
    ) -> None:
        plans = Plans(backlog.order, self._settings.seed, backlog.settled)
        while not self._stopping:
            self._ledger.note_alive()
            while not self._stopping and self._may_start() and plans.ready:
                self._started += 1
                groups.add(asyncio.create_task(self._group(runtime, settler, next(plans), backlog.order)))
            # The ledger lives in shared memory and wakes nobody, hence the short timeout.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), timeout=0.05)
            self._wake.clear()
            for group in [group for group in groups if group.done()]:
                groups.remove(group)
                group.result()

    def _may_start(self) -> bool:
        taken = self._ledger.taken
        return self._settings.admission.admits(
            under_way=self._started - taken,
            taken_this_version=taken - self._taken_at_version,
            trainer_waits=self._ledger.waiting,
        )

    async def _group(self, runtime: RolloutRuntime, settler: Settler, plan: GroupPlan, order: TaskOrder) -> None:
        started_s = time.monotonic()
        rollouts = await together(
            self._attempt(runtime, plan, index) for index in range(self._settings.num_generations)
        )
        group = await settler.settle(RolloutGroup(group_id=plan.group_id, task=plan.task, rollouts=tuple(rollouts)))
        order.note(group_number(group.group_id), outcome_of(group))
        self._groups.put(group)
        self._finished += 1
        self._metrics.put({**self._numbers(time.monotonic() - started_s), **pass_rate(group)})
        self._watch_for_futility(group)
        self._wake.set()

    async def _attempt(self, runtime: RolloutRuntime, plan: GroupPlan, index: int) -> Rollout:
        async with self._slots:
            self._inflight += 1
            try:
                return await runtime.driver.run(
                    Attempt(
                        rollout_id=f"{plan.group_id}-{index}",
                        group_id=plan.group_id,
                        task=plan.task,
                        seed=plan.seed + index,
                        group_seed=plan.seed,
                    )
                )
            finally:
                self._inflight -= 1

    def _numbers(self, seconds: float) -> dict[str, float]:
        return {
            "inflight": float(self._inflight),
            "queued_groups": float(max(0, self._finished - self._ledger.taken)),
            "group_seconds": seconds,
        }

    def _watch_for_futility(self, group: RolloutGroup) -> None:
        scored = any(reward is not None for reward in group.rewards)
        self._unscorable_in_a_row = 0 if scored else self._unscorable_in_a_row + 1
        if self._unscorable_in_a_row >= MAX_UNSCORABLE_GROUPS:
            last = next((r.failure for r in group.rollouts if r.failure), None)
            reason = f"{last.kind}: {last.message}" if last else "every reward is None"
            raise WorkerError(
                f"{self._unscorable_in_a_row} groups in a row without one scored rollout; last reason: {reason}. "
                "Mend the cause and start again; finished rollouts are in the run directory."
            )
