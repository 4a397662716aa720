"""Run file -> parts: the one place where names become objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from msgspec.structs import replace
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from longrein.cli.model_folder import check_context_length, with_model_folder
from longrein.config import Problem, RunConfig, config_error
from longrein.engines.base import EngineSpec
from longrein.engines.local.process import LocalEngineConfig
from longrein.errors import ConfigError, LongreinError, TaskError
from longrein.gateway.settings import GatewaySettings
from longrein.harnesses.base import Harness
from longrein.harnesses.command import Command
from longrein.harnesses.opencode import OpenCode
from longrein.rollout.runtime import RendererSpec, RuntimeSettings
from longrein.sandboxes.base import SandboxLimits
from longrein.sandboxes.choose import choose_backend
from longrein.sessions.agent import AgentSessionFactory
from longrein.tasks.base import Split, TaskSource
from longrein.tasks.source import task_source
from longrein.types import Task

HARNESSES = ("command", "opencode")


def checked(config: RunConfig, source: str) -> RunConfig:
    """The run with its model as a local folder, after checking what only the plug-ins can know.

    Raises:
        ConfigError: every problem in one message, each with file, key, value and fix.
    """
    problems: list[Problem] = []
    where = "tasks.folder" if config.tasks.source == "harbor" else "tasks.families"
    tasks_value: object = config.tasks.folder or list(config.tasks.families)
    probes: tuple[tuple[str, object, Callable[[], object]], ...] = (
        ("harness.name", config.harness.name, lambda: harness(config).check()),
        ("sandbox.backend", config.sandbox.backend, lambda: choose_backend(config.sandbox.backend)),
        (where, tasks_value, lambda: (tasks(config, "train"), tasks(config, "test"))),
        ("model.path", config.model.path, lambda: renderer_spec(with_model_folder(config)).load()),
        ("model.context_length", config.model.context_length, lambda: check_context_length(config)),
    )
    for key, value, probe in probes:
        try:
            probe()
        except LongreinError as error:
            problems.append(Problem(key=key, value=value, fix=str(error)))
    if problems:
        raise config_error(source, problems)
    return with_model_folder(config)


def harness(config: RunConfig) -> Harness:
    """The agent. Raises :class:`~longrein.errors.ConfigError` for an unknown name."""
    section = config.harness
    if section.name == "command":
        if section.script:
            return Command.python_script(section.script, env=section.env)
        return Command(argv=section.argv, env=section.env)
    if section.name == "opencode":
        return OpenCode(binary=section.binary) if section.binary else OpenCode()
    raise ConfigError(f"unknown harness; known: {', '.join(HARNESSES)}")


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


def source(config: RunConfig) -> TaskSource:
    """Where tasks come from."""
    return task_source(kind=config.tasks.source, families=config.tasks.families, folder=config.tasks.folder)


def tasks(config: RunConfig, split: Split) -> Sequence[Task]:
    """The run's tasks of a split, with the run file's time limit where it gives one.

    Raises:
        TaskError: unknown family, bad task directory, or too few tasks for two splits.
    """
    count = config.tasks.train_count if split == "train" else config.tasks.eval_count
    found = source(config).tasks(split, count, config.seed)
    if not found and count:
        raise TaskError(f"there is no task left for the {split} split; add tasks, or set tasks.eval_count = 0")
    timeout_s = config.rollout.agent_timeout_s
    return found if timeout_s is None else [replace(task, agent_timeout_s=timeout_s) for task in found]


def session_factory(config: RunConfig) -> AgentSessionFactory:
    """Sandbox, harness and verifier, as one factory of sessions."""
    limits = SandboxLimits(memory_bytes=config.sandbox.memory_mb << 20, pids=config.sandbox.pids)
    return AgentSessionFactory(harness=harness(config), backend=choose_backend(config.sandbox.backend), limits=limits)


def gateway_settings(config: RunConfig) -> GatewaySettings:
    """What the gateway forces on every call."""
    return GatewaySettings(
        temperature=config.rollout.temperature,
        max_tokens=config.rollout.max_tokens,
        max_calls=config.rollout.max_calls,
        context_length=config.model.context_length,
    )


def runtime_settings(config: RunConfig, engine: EngineSpec) -> RuntimeSettings:
    """All of it, for a process that makes rollouts."""
    return RuntimeSettings(
        engine=engine,
        renderer=renderer_spec(config),
        gateway=gateway_settings(config),
        factory=session_factory(config),
        max_inflight=config.rollout.max_inflight,
    )


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
