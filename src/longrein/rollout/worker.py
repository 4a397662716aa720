"""The trainer's handle on the rollout worker: a spawned process that never stops for an optimizer step."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from multiprocessing.context import SpawnProcess
from typing import Any

import msgspec

from longrein.engines.base import EngineSpec
from longrein.engines.template import ChatTokenizer
from longrein.engines.vllm.spec import VllmEngineSpec
from longrein.engines.vllm.urls import server_urls
from longrein.errors import ConfigError, WorkerError
from longrein.gateway.settings import GatewaySettings
from longrein.rollout.beginning import NewRun, ResumedRun
from longrein.rollout.buffer import AdmissionRule, Ledger, MetricsQueue, RolloutBuffer
from longrein.rollout.dataset import require_tasks, tasks_from
from longrein.rollout.factories import AnyFactory, driving_of, made_factory
from longrein.rollout.group import RewardFunc, RewardSettings, RolloutRewardFn, harness_reward
from longrein.rollout.pipe import Inbox
from longrein.rollout.process import Order, Report, WorkerEnds, WorkerSettings, worker_main
from longrein.rollout.runtime import RendererSource, RendererSpec, RuntimeSettings, TokenizerSpec
from longrein.rollout.schedule import Curriculum, Uniform
from longrein.rollout.travel import check_picklable
from longrein.rollout.turns import AgentTurnFn, TrainTurnFn, TurnSettings, every_turn, turns_by_role
from longrein.sessions.agent import AgentSessionFactory
from longrein.sessions.openenv_types import HarnessAdapter
from longrein.types import AdvantageName, Task

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 1.5
END_TIMEOUT_S = 5.0
"""For a process whose pipe has ended to be seen dead."""


class HarnessRolloutWorker:
    """Runs harness sessions in its own process and fills ``rollout_buffer`` with scored groups.

    Args:
        harness_session_factory: a :class:`~longrein.sessions.base.SessionFactory`, or an OpenEnv
            ``ResourceSessionFactory`` as it is (or in :class:`~longrein.sessions.openenv.OpenEnvSessions`); or a
            callable returning one.
        model_name: folder or hub id whose tokenizer and chat template render the conversations.
        dataset: the tasks, or rows that :func:`~longrein.rollout.dataset.tasks_from` makes tasks of.
        shuffle_dataset: every epoch in a new order drawn from ``seed``; otherwise always in the given one.
        curriculum: which tasks come more often, such as a
            :class:`~longrein.rollout.curriculum.PassRateCurriculum`; by default all come alike.
        seed: of the order of tasks, and of what is sampled.
        engine: where completions come from; or give ``vllm_server_url``.
        output_dir: the run directory; rollouts are written to its ``rollouts`` folder, which no other process may
            write at the same time.
        reward_funcs: TRL's reward functions; their values are added to the verifier's.
        rollout_reward_fn: makes a reward from an :class:`~longrein.views.Outcome`; the default takes the verifier's.
        train_turn_fn: says of each :class:`~longrein.views.Turn` whether it may train; the default leaves that to the
            roles' weights.
        agent_turn_fn: picks the calls of a :class:`~longrein.types.Trace` that are the agent's turns; all others
            become ``auxiliary``. The default goes by the roles that the gateway found.
        advantage: how a group's rewards become advantages, see :mod:`longrein.rollout.advantage`.
        num_generations: rollouts a group.
        max_inflight_tasks: sessions running at once.
        max_staleness: see :class:`~longrein.rollout.buffer.AdmissionRule`.
        groups_per_step: groups that the trainer takes a step.
        max_tokens: per call.
        max_calls, max_sampled_tokens, max_session_s, max_context_refusals: what one session may use; see
            :class:`~longrein.gateway.GatewaySettings`, also for ``engine_timeout_s``.
        chat_template: Jinja text used in place of the tokenizer's own.
        processing_class: a loaded tokenizer to render with, in place of the one of ``model_name``.
        harness_adapter: ``None``: agents run their own loops. An OpenEnv ``HarnessAdapter``, or our
            :class:`~longrein.rollout.tool_loop.ToolLoop`: it runs the loop of an OpenEnv factory's sessions.
        vllm_server_url: in place of ``engine``: the base URL of a vLLM server, or several of the same model. They must
            serve ``model_name`` with a context of ``context_length``.
        fork_threshold_tokens, log_completions, num_completions_to_print: accepted for scripts written for TRL. Rows
            are made, and completions printed, by the trainer: its config's fields of these names count.

    Raises:
        ConfigError: no engine, no tasks, tasks that cannot be judged, fewer than two generations, a factory that is of
            neither shape or does not go with the adapter, or something that cannot travel to a spawned process.
    """

    def __init__(  # noqa: PLR0913 - the public face follows TRL
        self,
        *,
        harness_session_factory: AnyFactory,
        model_name: str,
        dataset: Iterable[Task | Mapping[str, Any]],
        engine: EngineSpec | None = None,
        output_dir: str = "runs/rollouts",
        reward_funcs: Sequence[RewardFunc] = (),
        rollout_reward_fn: RolloutRewardFn = harness_reward,
        train_turn_fn: TrainTurnFn = every_turn,
        agent_turn_fn: AgentTurnFn = turns_by_role,
        advantage: AdvantageName = "group_normalised",
        num_generations: int = 8,
        max_inflight_tasks: int = 8,
        max_staleness: int = 4,
        groups_per_step: int = 1,
        max_tokens: int = 2048,
        max_calls: int = 64,
        max_sampled_tokens: int = 10_000_000,
        max_session_s: float = 86_400.0,
        max_context_refusals: int = 3,
        engine_timeout_s: float = 1800.0,
        context_length: int = 32768,
        temperature: float = 1.0,
        chat_template: str | None = None,
        tool_parser: str = "auto",
        renderer: str = "auto",
        shuffle_dataset: bool = True,
        curriculum: Curriculum | None = None,
        seed: int = 0,
        processing_class: ChatTokenizer | None = None,
        harness_adapter: HarnessAdapter | None = None,
        vllm_server_url: str | Sequence[str] | None = None,
        fork_threshold_tokens: int = 0,
        log_completions: bool = False,
        num_completions_to_print: int = 3,
    ) -> None:
        if num_generations < 2:
            raise ConfigError(
                f"HarnessRolloutWorker: num_generations={num_generations}; a group needs at least 2 to compare"
            )
        self.num_generations = num_generations
        self.advantage = advantage
        self.temperature = temperature
        self.max_staleness = max_staleness
        self.groups_per_step = groups_per_step
        self.max_tokens = max_tokens
        factory = made_factory(harness_session_factory, temperature)
        tasks, rule = _judgeable(dataset, factory), curriculum or Uniform(shuffle=shuffle_dataset)
        # Made anew where rollouts are; here it tells of tasks that it cannot order.
        rule.order(tasks, seed)
        self._settings = WorkerSettings(
            runtime=RuntimeSettings(
                engine=_engine_spec(engine, vllm_server_url, model_name, context_length),
                renderer=_renderer_source(
                    model_name,
                    processing_class,
                    chat_template=chat_template,
                    tool_parser=tool_parser,
                    renderer=renderer,
                ),
                gateway=GatewaySettings(
                    temperature=temperature,
                    max_tokens=max_tokens,
                    max_calls=max_calls,
                    max_sampled_tokens=max_sampled_tokens,
                    max_session_s=max_session_s,
                    max_context_refusals=max_context_refusals,
                    engine_timeout_s=engine_timeout_s,
                    context_length=context_length,
                    seed=seed,
                ),
                driving=driving_of(factory, harness_adapter),
                max_inflight=max_inflight_tasks,
            ),
            tasks=tasks,
            rewards=RewardSettings(
                reward_funcs=tuple(reward_funcs), rollout_reward_fn=rollout_reward_fn, advantage=advantage
            ),
            turns=TurnSettings(train_turn_fn=train_turn_fn, agent_turn_fn=agent_turn_fn),
            num_generations=num_generations,
            admission=AdmissionRule(groups_per_step=groups_per_step, max_staleness=max_staleness),
            beginning=NewRun(),
            output_dir=output_dir,
            curriculum=rule,
            seed=seed,
        )
        check_picklable(self._settings)
        context = multiprocessing.get_context("spawn")
        groups, child_groups = context.Pipe(duplex=False)
        metrics, child_metrics = context.Pipe(duplex=False)
        self._control, child_control = context.Pipe()
        ledger = Ledger(context)
        self.rollout_buffer = RolloutBuffer(Inbox(groups), ledger, self._explain_end)
        self.metrics_queue = MetricsQueue(Inbox(metrics))
        self._ends = WorkerEnds(groups=child_groups, metrics=child_metrics, control=child_control, ledger=ledger)
        self._process = self._new_process()
        self._ready = False
        self._failure = ""
        self._stopped = False

    def resume(self, taken: Collection[str], policy_version: int) -> None:
        """Go on with the rollouts in ``output_dir``, see :class:`~longrein.rollout.beginning.ResumedRun`.

        Called before :meth:`start`. Without it, a new run begins and rollouts of an earlier one are moved aside.

        Args:
            taken: ids of the groups that steps have used up.
            policy_version: of the weights that training goes on from.
        """
        resumed = ResumedRun(policy_version=policy_version, taken=frozenset(taken))
        self._settings = msgspec.structs.replace(self._settings, beginning=resumed)
        self._process = self._new_process()

    @property
    def vocabulary(self) -> str:
        """A digest of the vocabulary that prompts are rendered with. Loads the tokenizer; raises ``RenderError``."""
        return self._settings.runtime.renderer.load().vocabulary

    def start(self) -> None:
        """Start the process and wait until it makes rollouts.

        Raises:
            WorkerError: it did not come up; the message has its reason.
        """
        if multiprocessing.parent_process() is not None:
            raise ConfigError(
                "HarnessRolloutWorker.start() was reached while a spawned process imported your script; "
                "put the script's work under `if __name__ == '__main__':`"
            )
        self._process.start()
        # Ours must go: while a copy is open here, a worker that dies does not end the pipe.
        for connection in (self._ends.groups, self._ends.metrics, self._ends.control):
            connection.close()
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._ready and time.monotonic() < deadline_s:
            self._control.poll(0.1)
            self.check_health()
        if not self._ready:
            self.stop()
            raise WorkerError(
                f"the rollout worker did not come up within {START_TIMEOUT_S:.0f} s; see its output above"
            )

    def update_model_version(self, policy_version: int) -> None:
        """Tell the worker that the engine now samples with ``policy_version``."""
        self._send(Order(kind="version", policy_version=policy_version, taken=self.rollout_buffer.ledger.taken))

    def check_health(self) -> None:
        """Raise :class:`~longrein.errors.WorkerError` if the worker has failed or died."""
        alive = self._process.is_alive()
        self._read_reports()
        if not alive:
            reason = self._failure or f"it ended with exit code {self._process.exitcode}; see its output above"
            raise WorkerError(f"the rollout worker is dead: {reason}")
        if self._failure:
            raise WorkerError(f"the rollout worker failed: {self._failure}")

    def stop(self) -> None:
        """Stop in under 2 s, even with a full queue. Safe to call twice."""
        if self._stopped or self._process.pid is None:
            return
        self._stopped = True
        self._send(Order(kind="stop"))
        self._process.join(STOP_TIMEOUT_S)
        if self._process.is_alive():
            # Sandboxes die with it; what is left on disk is reaped at the next start.
            self._process.kill()
            self._process.join()
        self._control.close()
        self.rollout_buffer.close()
        self.metrics_queue.close()

    def _new_process(self) -> SpawnProcess:
        context = multiprocessing.get_context("spawn")
        return context.Process(target=worker_main, args=(self._settings, self._ends), name="longrein-rollout-worker")

    def _explain_end(self) -> None:
        self._process.join(END_TIMEOUT_S)
        self.check_health()

    def _send(self, order: Order) -> None:
        try:
            self._control.send(order)
        except OSError:
            # The process is gone; check_health says so.
            return

    def _read_reports(self) -> None:
        """All that have come: each counts, whoever looks first."""
        try:
            while self._control.poll():
                report: Report = self._control.recv()
                self._ready = self._ready or report.kind == "ready"
                self._failure = report.message or self._failure
        except (EOFError, OSError):
            return


def _engine_spec(
    engine: EngineSpec | None, vllm_server_url: str | Sequence[str] | None, model: str, context_length: int
) -> EngineSpec:
    if engine is not None and vllm_server_url is not None:
        raise ConfigError("HarnessRolloutWorker: give engine or vllm_server_url, not both")
    if vllm_server_url is not None:
        return VllmEngineSpec(urls=server_urls(vllm_server_url), model=model, context_length=context_length)
    if engine is None:
        raise ConfigError(
            "HarnessRolloutWorker: give engine, for instance the spec of a LocalEngineProcess, or vllm_server_url"
        )
    return engine


def _renderer_source(model_name: str, tokenizer: ChatTokenizer | None, **options: Any) -> RendererSource:
    if tokenizer is None:
        return RendererSpec(model=model_name, **options)
    return TokenizerSpec(tokenizer=tokenizer, **options)


def _judgeable(dataset: Iterable[Task | Mapping[str, Any]], factory: object) -> tuple[Task, ...]:
    tasks = tasks_from(dataset)
    if not tasks:
        raise ConfigError("HarnessRolloutWorker: the dataset has no tasks; give at least one")
    if isinstance(factory, AgentSessionFactory):
        # Other factories may judge in ways of their own.
        require_tasks(tasks, factory.check)
    return tasks
