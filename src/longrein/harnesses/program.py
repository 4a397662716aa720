"""How an installed agent is started inside a sandbox: its command and the host folders that the command needs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from longrein.errors import ConfigError
from longrein.types import Mount


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a command line, and what must be mounted, each where it lies on the host."""

    argv: tuple[str, ...]
    mounts: tuple[Mount, ...]
    required: tuple[str, ...]
    """Host paths without which nothing starts."""

    def check(self, agent: str) -> None:
        """Raise :class:`~longrein.errors.ConfigError` naming what is missing, and how to install ``agent``."""
        missing = [path for path in self.required if not Path(path).exists()]
        if missing:
            raise ConfigError(
                f"{agent} is not installed: there is no {' and no '.join(missing)}. "
                "Run `make agents` in the repository, or give the path of another installation as harness.binary"
            )


def node_program(node: Path, script: Path, options: tuple[str, ...] = ()) -> Program:
    """``node script``. The outermost ``node_modules`` above the script is mounted, since packages need each other."""
    node, script = node.resolve(), script.resolve()
    modules = [folder for folder in script.parents if folder.name == "node_modules"]
    return Program(
        argv=(str(node), *options, str(script)),
        mounts=(_in_place(node), _in_place(modules[-1] if modules else script.parent)),
        required=(str(node), str(script)),
    )


def python_program(script: Path) -> Program:
    """``bin/python bin/<script>`` of a virtual environment, which is mounted with the installation below it."""
    script = in_its_real_folder(script)
    argv = (str(script.with_name("python")), str(script))
    return Program(argv=argv, mounts=environment_mounts(script), required=argv)


def in_its_real_folder(program: Path) -> Path:
    """The path with links followed in its folder only: an environment's interpreter is itself a link, and must stay."""
    return program.parent.resolve() / program.name


def environment_mounts(program: Path) -> tuple[Mount, ...]:
    """The virtual environment or installation that has ``bin/<program>``, and what its ``pyvenv.cfg`` stands on.

    What lies below ``/usr`` is in every sandbox and needs no mount.
    """
    environment = program.parent.parent
    folders = [environment, *_base_installation(environment / "pyvenv.cfg")]
    return tuple(_in_place(folder) for folder in folders if not folder.is_relative_to("/usr"))


def _base_installation(settings: Path) -> list[Path]:
    if not settings.is_file():
        return []
    lines = (line.partition("=") for line in settings.read_text(encoding="utf-8").splitlines())
    return [Path(value.strip()).parent for key, _, value in lines if key.strip() == "home"]


def _in_place(path: Path) -> Mount:
    return Mount(source=str(path), target=str(path))
