"""Harbor's environments (Docker, Podman, Daytona, E2B, Modal, ...) as a sandbox backend of ours."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longrein.errors import ConfigError
from longrein.integrations.harbor.faults import provider
from longrein.integrations.harbor.imported import harbor_module
from longrein.integrations.harbor.ports import OpenPorts, PortBridge, SharedLoopback
from longrein.integrations.harbor.relay import ExecRelay
from longrein.integrations.harbor.sandbox import HOME, WORKDIR, HarborSandbox, paths_of
from longrein.sandboxes.base import SandboxSpec
from longrein.sandboxes.closing import close_or_log

_PREFIX = "longrein-harbor-"


class HarborBackend:
    """Makes one Harbor environment a sandbox; picklable.

    Process and output limits are ours to keep where the provider has none: output is cut after it came, and the number
    of processes is not limited. Read-only mounts become copies.

    Args:
        environment: a type that Harbor knows (``docker``, ``e2b``, ...) or ``module:Class``.
        image: of the environment, with ``bash``, coreutils, ``tar`` and, for the relay, ``python3``.
        kwargs: the provider's own options.
        ports: how the gateway is reached from inside; by default through commands, which any provider runs.
        network_mode: Harbor's: ``no-network`` (nothing but the gateway) or ``public``.
    """

    def __init__(
        self,
        environment: str,
        *,
        image: str,
        kwargs: Mapping[str, Any] | None = None,
        ports: PortBridge | None = None,
        network_mode: str = "no-network",
    ) -> None:
        self._environment = environment
        self._image = image
        self._kwargs = dict(kwargs or {})
        self._ports = ports or ExecRelay()
        self._network_mode = network_mode

    async def create(self, spec: SandboxSpec) -> HarborSandbox:
        """Start an environment.

        Raises:
            ConfigError: Harbor is not installed, or has no such environment.
            SandboxError: the provider cannot start it as asked.
        """
        environment_class = self._environment_class()
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            with provider("starting"):
                environment = self._make(environment_class, folder, spec)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        sandbox = HarborSandbox(environment, spec, folder)
        try:
            with provider("starting"):
                await environment.start(force_build=False)
            await sandbox.prepare()
            bridge = self._ports if spec.loopback_ports else SharedLoopback()
            opened: OpenPorts = await bridge.open(environment, spec.loopback_ports)
            sandbox.closes(opened)
        except BaseException:
            # Also what started half-way: only `stop` knows what there is of it.
            await close_or_log(sandbox)
            raise
        return sandbox

    def _environment_class(self) -> Any:
        factory = harbor_module("environments.factory").EnvironmentFactory
        try:
            if ":" in self._environment:
                return factory.get_environment_class(import_path=self._environment)
            kind = harbor_module("models.environment_type").EnvironmentType(self._environment)
            return factory.get_environment_class(kind)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigError(f"HarborBackend: environment {self._environment!r} cannot be used: {error}") from error

    def _make(self, environment_class: Any, folder: Path, spec: SandboxSpec) -> Any:
        task_config = harbor_module("models.task.config")
        definition = folder / "environment"
        definition.mkdir()
        paths = harbor_module("models.trial.paths").TrialPaths(folder / "trial")
        paths.trial_dir.mkdir()
        return environment_class(
            environment_dir=definition,
            environment_name="longrein",
            session_id=f"longrein__{secrets.token_hex(6)}",
            trial_paths=paths,
            task_env_config=task_config.EnvironmentConfig(
                docker_image=self._image,
                memory_mb=spec.limits.memory_bytes >> 20,
                env={**spec.env, **paths_of(HOME)},
                workdir=WORKDIR,
            ),
            network_policy=task_config.NetworkPolicy(network_mode=self._network_mode),
            **self._kwargs,
        )
