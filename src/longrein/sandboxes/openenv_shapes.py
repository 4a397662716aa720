"""The shapes of OpenEnv's sandboxes, as protocols of ours: nothing of OpenEnv is imported.

Source: OpenEnv, ``envs/opencode_env/sandbox/base.py`` (``ExecResult``, ``BgJob``, ``SandboxHandle``,
``SandboxBackend``), which its E2B and Hugging Face backends fill.
"""

from __future__ import annotations

from typing import Protocol


class OpenEnvExecResult(Protocol):
    """How a command ended."""

    @property
    def exit_code(self) -> int:
        """0 to 255, or negative for a signal."""
        ...

    @property
    def stdout(self) -> str:
        """As text."""
        ...

    @property
    def stderr(self) -> str:
        """As text."""
        ...


class OpenEnvJob(Protocol):
    """A background process (``BgJob``)."""

    @property
    def pid(self) -> int:
        """As the sandbox counts."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Exit code. Raises ``TimeoutError`` when it runs on past ``timeout`` seconds."""
        ...

    def kill(self) -> None:
        """End it."""
        ...


class OpenEnvHandle(Protocol):
    """One live sandbox (``SandboxHandle``). Every call blocks."""

    @property
    def sandbox_id(self) -> str:
        """A name for logs."""
        ...

    def exec(
        self, cmd: str, *, envs: dict[str, str] | None = None, cwd: str | None = None, timeout: float | None = 60
    ) -> OpenEnvExecResult:
        """Run a shell command to its end."""
        ...

    def start_bg(self, cmd: str, *, envs: dict[str, str] | None = None, cwd: str | None = None) -> OpenEnvJob:
        """Start a shell command."""
        ...

    def write_text(self, path: str, content: str) -> None:
        """Write a file, making its folders."""
        ...

    def read_text(self, path: str) -> str:
        """Content of a file."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is something."""
        ...

    def kill(self) -> None:
        """End the sandbox."""
        ...


class OpenEnvBackend(Protocol):
    """Makes sandboxes (``SandboxBackend``)."""

    def create(
        self, *, timeout_s: int = 900, envs: dict[str, str] | None = None, metadata: dict[str, str] | None = None
    ) -> OpenEnvHandle:
        """A new sandbox, which its provider ends after ``timeout_s`` seconds at the latest."""
        ...
