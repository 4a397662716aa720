"""Any command line as an agent."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from longrein.errors import ConfigError
from longrein.harnesses.program import environment_mounts, in_its_real_folder
from longrein.types import Endpoint, Launch, Mount, Task

_SCRIPT_FOLDER = ".longrein"
_PLACEHOLDER = re.compile(r"\{(prompt|base_url|api_key|model)\}")


class Command:
    """Runs ``argv`` in the work directory, told where its model is by the usual environment variables.

    ``OPENAI_BASE_URL`` (with ``/v1``), ``OPENAI_API_KEY``, ``OPENAI_MODEL`` and ``TASK_PROMPT`` are set. In ``argv``
    and ``env``, ``{prompt}``, ``{base_url}`` (without ``/v1``), ``{api_key}`` and ``{model}`` are replaced; other
    braces stay. Items that begin with ``$HOME`` or ``$WORKDIR`` are paths inside the sandbox.

    Args:
        argv: the command; an absolute path outside ``/usr`` needs a mount.
        env: more variables.
        files: written before the start; relative paths are in HOME.
        mounts: read-only host folders that the command needs.
        name: for metrics.
    """

    def __init__(
        self,
        argv: tuple[str, ...],
        env: dict[str, str] | None = None,
        files: dict[str, bytes] | None = None,
        mounts: tuple[Mount, ...] = (),
        name: str = "command",
    ) -> None:
        self._argv = tuple(argv)
        self._env = dict(env or {})
        self._files = dict(files or {})
        self._mounts = tuple(mounts)
        self._name = name

    @classmethod
    def python_script(
        cls,
        path: str,
        env: dict[str, str] | None = None,
        args: tuple[str, ...] = (),
        name: str = "command",
        python: str = "",
    ) -> Command:
        """A script file, shipped into the sandbox and run there.

        Args:
            path: the script.
            env: as of :class:`Command`.
            args: given to the script.
            name: for metrics.
            python: the interpreter, ``.venv/bin/python`` say. It is mounted read-only where it lies, with what is
                installed in its virtual environment and with the installation below that. By default the base
                installation of the interpreter that runs us: the standard library and nothing else.

        Raises:
            ConfigError: there is no such file.
        """
        script = Path(path)
        try:
            source = script.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"agent script {path!r} cannot be read: {error}; give the path of a Python file"
            ) from error
        interpreter = in_its_real_folder(Path(python)) if python else _base_interpreter(Path(sys.base_prefix).resolve())
        return cls(
            argv=(str(interpreter), "-u", f"$HOME/{_SCRIPT_FOLDER}/{script.name}", *args),
            env=env,
            files={f"{_SCRIPT_FOLDER}/{script.name}": source},
            mounts=environment_mounts(interpreter),
            name=name,
        )

    @property
    def name(self) -> str:
        """The name used in run files and metrics."""
        return self._name

    def check(self) -> None:
        """Raise :class:`~longrein.errors.ConfigError` when the command or a mount cannot be found."""
        if not self._argv:
            raise ConfigError("the command is empty; set argv or script")
        for mount in self._mounts:
            if not Path(mount.source).exists():
                raise ConfigError(f"mount {mount.source!r} does not exist; correct it or install the agent there")
        program = self._argv[0]
        if program.startswith(("$HOME", "$WORKDIR")) or program in self._files:
            return
        if shutil.which(program) is None:
            raise ConfigError(f"command {program!r} not found; install it, or give its path")

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """Fill in the placeholders."""
        values = {
            "prompt": task.prompt,
            "base_url": endpoint.base_url,
            "api_key": endpoint.api_key,
            "model": endpoint.model,
        }
        env = {
            "OPENAI_BASE_URL": f"{endpoint.base_url}/v1",
            "OPENAI_API_KEY": endpoint.api_key,
            "OPENAI_MODEL": endpoint.model,
            "TASK_PROMPT": task.prompt,
            **{name: _filled(text, values) for name, text in self._env.items()},
        }
        return Launch(
            argv=tuple(_filled(text, values) for text in self._argv),
            env=env,
            files=self._files,
            readonly_mounts=self._mounts,
        )


def _base_interpreter(prefix: Path) -> Path:
    """The interpreter of the base installation: a virtual environment's own is a link into it."""
    versioned = prefix / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    return versioned if os.access(versioned, os.X_OK) else Path(sys.executable).resolve()


def _filled(text: str, values: dict[str, str]) -> str:
    """Replace in one pass, so that a prompt that speaks of ``{model}`` stays as it is."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)
