"""Run file -> parts: the one place where names become objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from msgspec.structs import asdict, replace
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from longrein.cli.agents import harness_of
from longrein.cli.model_folder import check_context_length, model_folder, with_model_folder
from longrein.cli.task_parts import named_by, source_of, verifier_of
from longrein.cli.weight_sync import check_engine
from longrein.config import RunConfig
from longrein.engines.base import EngineSpec
from longrein.engines.local.process import LocalEngineConfig
from longrein.errors import LongreinError, TaskError
from longrein.gateway.settings import GatewaySettings
from longrein.rollout.curriculum import PassRateCurriculum
from longrein.rollout.driving import AgentLoops
from longrein.rollout.group import RolloutRewardFn, harness_reward
from longrein.rollout.overlong import OverlongPunishment
from longrein.rollout.runtime import RendererSpec, RuntimeSettings
from longrein.rollout.schedule import Curriculum, Uniform
from longrein.run_file import Problem, config_error
from longrein.sandboxes.base import SandboxBackend, SandboxLimits
from longrein.sandboxes.choose import choose_backend
from longrein.sessions.agent import AgentSessionFactory
from longrein.tasks.base import Split
from longrein.tasks.sound import check_all, require_sound
from longrein.train.adapters import check_fit, lora_config
from longrein.train.loss_choices import LossChoices
from longrein.types import Task


def checked(config: RunConfig, source: str, trains: bool = True) -> RunConfig:
    """The run with its model as a local folder, after checking what only the plug-ins can know.

    Args:
        config: the run.
        source: names the run file in errors.
        trains: there must be tasks to train on, not only tasks that are held out.

    Raises:
        ConfigError: every problem in one message, each with file, key, value and fix.
    """
    problems: list[Problem] = []
    where, tasks_value = named_by(config.tasks)
    probes: tuple[tuple[str, object, Callable[[], object]], ...] = (
        ("harness.name", config.harness.name, lambda: harness_of(config.harness).check()),
        ("sandbox.backend", config.sandbox.backend, lambda: sandbox_backend(config)),
        (where, tasks_value, lambda: check_tasks(config, trains)),
        ("model.path", config.model.path, lambda: renderer_spec(with_model_folder(config)).load()),
        ("model.context_length", config.model.context_length, lambda: check_context_length(config)),
        ("train.loss", config.train.loss, lambda: loss_choices(config).check()),
        ("engine.urls", list(config.engine.urls), lambda: check_engine(config)),
        ("train.lora", config.train.lora and asdict(config.train.lora), lambda: check_lora(config)),
    )
    for key, value, probe in probes:
        try:
            probe()
        except LongreinError as error:
            problems.append(Problem(key=key, value=value, fix=str(error)))
    if problems:
        raise config_error(source, problems)
    return with_model_folder(config)


def check_tasks(config: RunConfig, trains: bool = True) -> None:
    """See that tasks can be had, judged and ordered.

    Raises:
        TaskError: naming all of them that cannot.
        ConfigError: a curriculum that does not fit them.
    """
    judge = verifier_of(config.tasks)

    def check(task: Task) -> None:
        require_sound(task)
        judge.check(task)

    train = tasks(config, "train", needed=trains)
    check_all((*train, *tasks(config, "test")), check)
    if trains:
        curriculum(config).order(train, config.seed)


def loss_choices(config: RunConfig) -> LossChoices:
    """What decides about the loss, most of it in ``[train]``."""
    said: dict[str, Any] = {**asdict(config.train), "max_staleness": config.rollout.max_staleness}
    return LossChoices(**{name: said[name] for name in LossChoices.__struct_fields__})


def peft_config(config: RunConfig) -> Any:
    """What GRPO's trainer puts on the model: the adapters of ``[train.lora]``, or nothing."""
    return lora_config(**asdict(config.train.lora)) if config.train.lora else None


def check_lora(config: RunConfig) -> None:
    """Raise :class:`~longrein.errors.ConfigError` when ``[train.lora]`` does not fit the model."""
    if config.train.lora:
        check_fit(model_folder(config.model.path), peft_config(config))


def reward_fn(config: RunConfig) -> RolloutRewardFn:
    """What training rewards: the verifier's verdict, less the punishment of length if there is one."""
    max_tokens, cache_tokens = config.rollout.overlong_max_tokens, config.rollout.overlong_cache_tokens
    return OverlongPunishment(max_tokens=max_tokens, cache_tokens=cache_tokens) if max_tokens else harness_reward


def renderer_spec(config: RunConfig) -> RendererSpec:
    """How conversations become tokens."""
    model = config.model
    return RendererSpec(
        model=model.path,
        chat_template=chat_template(config),
        tool_parser=model.tool_parser,
        renderer=model.renderer,
    )


def chat_template(config: RunConfig) -> str | None:
    """The run file's own Jinja template, if it brings one."""
    path = config.model.chat_template
    return Path(path).read_text(encoding="utf-8") if path else None


def tasks(config: RunConfig, split: Split, needed: bool = True) -> Sequence[Task]:
    """The run's tasks of a split, with the run file's time limit where it gives one.

    Raises:
        TaskError: unknown family, bad task directory, or, where they are ``needed``, none in the split.
    """
    count = config.tasks.train_count if split == "train" else config.tasks.eval_count
    found = source_of(config.tasks).tasks(split, count, config.seed)
    if not found and count and needed:
        instead = "set tasks.eval_count = 0" if split == "test" else "name a source with tasks that are not held out"
        raise TaskError(f"there is no task left for the {split} split; add tasks, or {instead}")
    said = {"agent_timeout_s": config.rollout.agent_timeout_s, "verifier_timeout_s": config.tasks.verifier.timeout_s}
    limits = {name: seconds for name, seconds in said.items() if seconds is not None}
    return [replace(task, **limits) for task in found] if limits else found


def curriculum(config: RunConfig) -> Curriculum:
    """Which tasks come more often."""
    section, shuffle = config.tasks.curriculum, config.tasks.shuffle
    if section.rule == "uniform":
        return Uniform(shuffle=shuffle)
    said = asdict(section)
    return PassRateCurriculum(**{name: value for name, value in said.items() if name != "rule"}, shuffle=shuffle)


def session_factory(config: RunConfig) -> AgentSessionFactory:
    """Sandbox, harness and verifier, as one factory of sessions."""
    return AgentSessionFactory(
        harness=harness_of(config.harness),
        backend=sandbox_backend(config),
        limits=sandbox_limits(config),
        verifier=verifier_of(config.tasks),
    )


def sandbox_backend(config: RunConfig) -> SandboxBackend:
    """The kind of sandbox that ``[sandbox]`` asks for.

    Raises:
        ConfigError: it does not start here, or lacks what it needs.
    """
    return choose_backend(config.sandbox.backend, rootfs=config.sandbox.rootfs, image=config.sandbox.image)


def sandbox_limits(config: RunConfig) -> SandboxLimits:
    """Bounds on each sandbox of an agent."""
    section = config.sandbox
    return SandboxLimits(
        memory_bytes=section.memory_mb << 20, pids=section.pids, cpus=section.cpus, disk_bytes=section.disk_mb << 20
    )


def gateway_settings(config: RunConfig) -> GatewaySettings:
    """What the gateway forces on every call."""
    return GatewaySettings(
        temperature=config.rollout.temperature,
        max_tokens=config.rollout.max_tokens,
        max_calls=config.rollout.max_calls,
        max_sampled_tokens=config.rollout.max_sampled_tokens,
        max_session_s=config.rollout.max_session_s,
        max_context_refusals=config.rollout.max_context_refusals,
        engine_timeout_s=config.rollout.engine_timeout_s,
        context_length=config.model.context_length,
        seed=config.seed,
    )


def runtime_settings(config: RunConfig, engine: EngineSpec) -> RuntimeSettings:
    """All of it, for a process that makes rollouts."""
    return RuntimeSettings(
        engine=engine,
        renderer=renderer_spec(config),
        gateway=gateway_settings(config),
        driving=AgentLoops(factory=session_factory(config)),
        max_inflight=config.rollout.max_inflight,
    )


def judging_settings(config: RunConfig, engine: EngineSpec) -> RuntimeSettings:
    """The same for held-out judgement, which samples as ``[eval]`` says."""
    settings, said = runtime_settings(config, engine), config.eval
    temperature = config.rollout.temperature if said.temperature is None else said.temperature
    gateway = replace(settings.gateway, temperature=temperature, top_p=said.top_p, top_k=said.top_k, min_p=said.min_p)
    return replace(settings, gateway=gateway)


def engine_config(config: RunConfig) -> LocalEngineConfig:
    """The embedded engine for the run's model."""
    return LocalEngineConfig(
        model=config.model.path,
        dtype=config.model.dtype,
        threads=config.compute.engine_threads,
        context_length=config.model.context_length,
        max_batch=config.compute.max_batch,
        seed=config.seed,
    )


def training_tokenizer(config: RunConfig) -> PreTrainedTokenizerBase:
    """The tokenizer that is saved with the model: the run file's template included, so that the folder is whole."""
    loaded = cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(config.model.path))  # pyright: ignore[reportUnknownMemberType] - untyped
    template = chat_template(config)
    if template is not None:
        loaded.chat_template = template
    return loaded
