"""The engine of a run, embedded or vLLM, as whoever owns the weights sees it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from longrein.cli import parts
from longrein.cli.weight_sync import sync_settings
from longrein.config import RunConfig
from longrein.engines.base import EngineSpec, WeightReceiver
from longrein.engines.local.process import LocalEngineProcess
from longrein.engines.vllm.process import ServerProcess
from longrein.engines.vllm.spec import VllmEngineSpec
from longrein.engines.vllm.urls import server_urls
from longrein.train.vllm.servers import VllmServers


class RunEngine(Protocol):
    """An engine and the way of new weights to it."""

    def start(self) -> None:
        """On return it serves the run's model, as policy version 0. Raises :class:`~longrein.errors.EngineError`."""
        ...

    def stop(self) -> None:
        """Let go of it, and end what was started. Idempotent."""
        ...

    @property
    def spec(self) -> EngineSpec:
        """How other processes reach it, once it was started."""
        ...

    @property
    def weights(self) -> WeightReceiver:
        """Where new weights go, once it was started."""
        ...


@contextmanager
def started_engine(config: RunConfig) -> Generator[RunEngine, None, None]:
    """The run's engine, stopped at the end, however that comes.

    Raises:
        ConfigError: settings that cannot work together.
        EngineError: it does not start, or a server lacks what the run needs.
    """
    engine = run_engine(config)
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()


def run_engine(config: RunConfig) -> RunEngine:
    """What ``[engine]`` asks for, not yet started. Raises :class:`~longrein.errors.ConfigError`."""
    if config.engine.kind == "local":
        return LocalEngineProcess(parts.engine_config(config))
    settings = sync_settings(config)
    spec = VllmEngineSpec(
        urls=settings.urls,
        model=config.model.path,
        context_length=config.model.context_length,
        outage_timeout_s=settings.outage_timeout_s,
        connect_timeout_s=settings.outage_timeout_s,
        published=True,
    )
    return VllmServers(
        spec=spec, sync=settings, processes=_processes(config), start_timeout_s=config.engine.start_timeout_s
    )


def _processes(config: RunConfig) -> tuple[ServerProcess, ...]:
    engine = config.engine
    return tuple(
        ServerProcess(
            engine.command,
            env=engine.env,
            url=url,
            model=config.model.path,
            log=Path(config.output_dir) / f"engine-{number}.log",
        )
        for number, url in enumerate(server_urls(engine.urls) if engine.command else ())
    )
