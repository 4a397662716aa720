"""``longrein doctor RUN.toml``: certifies a setup before a run is spent."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from longrein.cli import parts
from longrein.cli.agents import harness_of
from longrein.cli.command import Command, add_run_arguments, read_run_file
from longrein.cli.engine import started_engine
from longrein.cli.model_folder import with_model_folder
from longrein.cli.task_parts import verifier_of
from longrein.config import RunConfig
from longrein.doctor.adapter_sync import Adapter
from longrein.doctor.agent import Agent
from longrein.doctor.check import About, Blocked, Broken, Check, examine
from longrein.doctor.context import ContextLength
from longrein.doctor.logprobs import Logprobs
from longrein.doctor.model import Model
from longrein.doctor.prefix_cache import PrefixCache
from longrein.doctor.reachable import Reachable
from longrein.doctor.result import CheckResult
from longrein.doctor.sampling_defaults import SamplingDefaults
from longrein.doctor.sandbox import sandbox_checks
from longrein.doctor.stops import Stops
from longrein.doctor.tasks import Tasks
from longrein.doctor.template import Template
from longrein.doctor.tokenizer import Tokenizer
from longrein.doctor.weight_sync import WeightSync
from longrein.engines.base import EngineSpec, WeightReceiver
from longrein.engines.render import ChatRenderer
from longrein.errors import ConfigError, EngineError, RenderError
from longrein.sandboxes.base import SandboxBackend
from longrein.train.adapter_probe import adapter_probe
from longrein.train.folder_weights import folder_weights
from longrein.types import Task

PATIENCE_S = 600.0
"""For one check."""
COLOURS = {"pass": "green", "fail": "bold red", "cannot tell": "yellow"}

ENGINE_CHECKS = tuple(
    kind.about
    for kind in (
        Reachable,
        Tokenizer,
        Model,
        Logprobs,
        SamplingDefaults,
        ContextLength,
        Stops,
        PrefixCache,
        WeightSync,
    )
)
"""What needs a running engine, in the order of the table."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The run file, and which checks."""
    add_run_arguments(parser)
    parser.add_argument("--only", action="append", default=[], metavar="CHECK", help="this check (may be repeated)")
    parser.add_argument("--list", action="store_true", help="name the checks, and run none")
    parser.add_argument("--json", action="store_true", help="print findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the checks; 1 if any failed."""
    config = with_model_folder(read_run_file(arguments))
    setup = Setup(config)
    console = Console()
    if arguments.list:
        _print_list(setup, console)
        return 0
    chosen = _chosen(setup, arguments.only)
    with console.status("examining") if not arguments.json else nullcontext():
        findings = setup.examine(chosen)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(findings)).decode())
    else:
        console.print(table_of(findings))
    return int(any(finding.status == "fail" for finding in findings))


class Setup:
    """A run file's parts, and the checks of them."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    def examine(self, chosen: Collection[str]) -> list[CheckResult]:
        """Run the checks of these names, those of the engine first. The engine is started if one of them needs it."""
        findings: list[CheckResult] = []
        if any(about.name in chosen for about in ENGINE_CHECKS):
            findings += self._of_the_engine(chosen)
        return findings + asyncio.run(_examined(self.engineless(), chosen))

    def engineless(self) -> tuple[Check, ...]:
        """What needs no engine."""
        config, backend = self._config, self._backend
        limits = parts.sandbox_limits(config)
        source = parts.renderer_spec(config)
        agent = Agent(
            harness=lambda: harness_of(config.harness),
            backend=backend,
            factory=lambda: parts.session_factory(config),
            source=source,
            settings=parts.gateway_settings(config),
            tasks=self._tasks,
        )
        folder = config.tasks.folder if config.tasks.source == "harbor" else ""
        tasks = Tasks(
            tasks=self._tasks, folder=folder, backend=backend, limits=limits, verifier=verifier_of(config.tasks)
        )
        return (Template(source), *sandbox_checks(backend), agent, tasks)

    def _of_the_engine(self, chosen: Collection[str]) -> list[CheckResult]:
        try:
            renderer = parts.renderer_spec(self._config).load()
        except RenderError as error:
            # Told among the engineless checks where it was chosen.
            untold = () if Template.about.name in chosen else (Broken(about=Template.about, why=str(error)),)
            blocked = _blocked(ENGINE_CHECKS, Template.about)
            return asyncio.run(_examined((*untold, *blocked), (*chosen, Template.about.name)))
        try:
            with started_engine(self._config) as engine:
                checks = self.of_engine(engine.spec, engine.weights, renderer)
                return asyncio.run(_first_then_others(checks, chosen))
        except (EngineError, ConfigError) as error:
            broken = Broken(about=Reachable.about, why=str(error))
            others = _blocked(ENGINE_CHECKS[1:], Reachable.about)
            return asyncio.run(_first_then_others((broken, *others), chosen))

    def of_engine(self, spec: EngineSpec, receiver: WeightReceiver, renderer: ChatRenderer) -> tuple[Check, ...]:
        """What a running engine is asked."""
        config, model = self._config, self._config.model
        return (
            Reachable(spec, renderer),
            Tokenizer(spec, renderer),
            Model(spec, renderer, model.path, model.dtype),
            Logprobs(spec, renderer, config.rollout.temperature),
            SamplingDefaults(spec, renderer, model.path),
            ContextLength(spec, renderer, model.context_length),
            Stops(spec, renderer),
            PrefixCache(spec, renderer, model.context_length),
            WeightSync(spec, receiver, lambda: folder_weights(Path(model.path)), renderer, self._adapter()),
        )

    def _adapter(self) -> Adapter | None:
        """What an engine of a run with ``[train.lora]`` is sent."""
        if self._config.train.lora is None:
            return None
        return lambda weights: adapter_probe(self._config.model.path, parts.peft_config(self._config), weights)

    def _backend(self) -> SandboxBackend:
        return parts.sandbox_backend(self._config)

    def _tasks(self) -> Sequence[Task]:
        return [*parts.tasks(self._config, "train"), *parts.tasks(self._config, "test")]


async def _first_then_others(checks: Sequence[Check], chosen: Collection[str]) -> list[CheckResult]:
    """If the first fails, it is told whether it was chosen or not, and of the others nothing can be told."""
    first = await examine(checks[0], PATIENCE_S)
    if first.status != "fail":
        return [*([first] if first.check in chosen else []), *await _examined(checks[1:], chosen)]
    others = _blocked([check.about for check in checks[1:]], checks[0].about)
    return [first, *await _examined(others, chosen)]


async def _examined(checks: Sequence[Check], chosen: Collection[str]) -> list[CheckResult]:
    """One after the other: they measure time and frequencies."""
    return [await examine(check, PATIENCE_S) for check in checks if check.about.name in chosen]


def _blocked(checks: Sequence[About], needs: About) -> tuple[Check, ...]:
    return tuple(Blocked(about=about, needs=needs) for about in checks)


def table_of(findings: Sequence[CheckResult]) -> Table:
    """The findings, each failure with its fix."""
    table = Table("check", "", "seen", "s", title="longrein doctor", show_lines=True)
    for finding in findings:
        seen = escape(finding.seen) + (f"\n[bold]fix:[/] {escape(finding.fix)}" if finding.fix else "")
        status = f"[{COLOURS[finding.status]}]{finding.status}[/]"
        table.add_row(finding.check, status, seen, f"{finding.duration_s:.1f}")
    return table


def _all(setup: Setup) -> tuple[About, ...]:
    return (*ENGINE_CHECKS, *(check.about for check in setup.engineless()))


def _print_list(setup: Setup, console: Console) -> None:
    table = Table("check", "certifies")
    for about in _all(setup):
        table.add_row(about.name, escape(about.certifies))
    console.print(table)


def _chosen(setup: Setup, only: Sequence[str]) -> Collection[str]:
    """Names of the checks to run. Raises :class:`~longrein.errors.ConfigError` for one that there is not."""
    known = [about.name for about in _all(setup)]
    unknown = [name for name in only if name not in known]
    if unknown:
        raise ConfigError(f"no check is named {', '.join(map(repr, unknown))}; known: {', '.join(known)}")
    return only or known


COMMAND = Command(name="doctor", help="certify a setup before a run is spent", configure=configure, run=run)
