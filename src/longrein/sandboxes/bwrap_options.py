"""What a bubblewrap sandbox shows: options as data, made without a process."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import msgspec

from longrein.errors import SandboxError
from longrein.sandboxes.bwrap_system import System
from longrein.sandboxes.identity import Identity
from longrein.sandboxes.layout import Layout
from longrein.types import Mount

WORKDIR = "/workdir"
HOME = "/home/sandbox"
TMP = "/tmp"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_SHARED_MEMORY_BYTES = 256 << 20


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one sandbox shows its commands."""

    identity: Identity
    system: System
    layout: Layout
    readonly_mounts: tuple[Mount, ...]
    env: dict[str, str]


def base_environment(home: str, temporary: str) -> dict[str, str]:
    """The environment every command starts from. Source: agents.md, base environment."""
    return {
        "PATH": PATH,
        "HOME": home,
        "TMPDIR": temporary,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "USER": "agent",
        "XDG_CONFIG_HOME": f"{home}/.config",
        "XDG_DATA_HOME": f"{home}/.local/share",
        "XDG_STATE_HOME": f"{home}/.local/state",
        "XDG_CACHE_HOME": f"{home}/.cache",
    }


def check_mounts(mounts: tuple[Mount, ...], private: tuple[str, ...]) -> None:
    """Refuse mounts that are not there, or would hide or be hidden by a private folder.

    Below ``/tmp`` they may lie, since a checkout may: nothing of it is collected.

    Raises:
        SandboxError: naming the mount.
    """
    for mount in mounts:
        if not Path(mount.source).exists():
            raise SandboxError(f"read-only mount {mount.source!r} does not exist on this machine")
        target = PurePosixPath(mount.target)
        if not target.is_absolute() or ".." in target.parts:
            raise SandboxError(f"read-only mount at {mount.target!r}: the target must be an absolute path")
        for folder in (*private, "/proc", "/dev"):
            inside = target.is_relative_to(folder) and folder != TMP
            if inside or PurePosixPath(folder).is_relative_to(target):
                raise SandboxError(f"read-only mount at {mount.target!r} collides with the sandbox's own {folder}")


def write_etc(folder: Path, inside_id: int) -> None:
    """The few files of ``/etc`` that programs cannot do without; the host's own are not shown."""
    folder.mkdir()
    files = {
        "passwd": f"root:x:0:0:root:/root:/bin/sh\nagent:x:{inside_id}:{inside_id}:agent:{HOME}:/bin/sh\n",
        "group": f"root:x:0:\nagent:x:{inside_id}:\n",
        "hosts": "127.0.0.1 localhost\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)


def bwrap_options(view: View, env: dict[str, str]) -> list[str]:
    """Options for one command. The order matters: later mounts lie over earlier ones."""
    options = [*view.identity.options, "--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv"]
    early = [mount for mount in view.readonly_mounts if not _is_temporary(mount)]
    late = [mount for mount in view.readonly_mounts if _is_temporary(mount)]
    own = view.system.own_folders
    options += view.system.begin
    options += _parents((*view.layout.trees, *(mount.target for mount in early), "/etc/hosts"), own)
    options += [*view.system.etc, *_etc(view.layout.session / "etc")]
    options += ["--proc", "/proc", "--dev", "/dev"]
    options += ["--perms", "1777", "--size", str(_SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    options += _readonly(early)
    for inside, tree in view.layout.trees.items():
        options += ["--bind", str(tree.path), inside]
    options += [*_parents(tuple(mount.target for mount in late), own), *_readonly(late)]
    options += [*view.system.end, "--chdir", view.layout.workdir]
    for name, value in {**view.env, **env}.items():
        options += ["--setenv", name, value]
    return options


def _is_temporary(mount: Mount) -> bool:
    """Whether it lies over the private ``/tmp``, and so must follow it."""
    return PurePosixPath(mount.target).is_relative_to(TMP)


def _readonly(mounts: list[Mount]) -> list[str]:
    return [option for mount in mounts for option in ("--ro-bind", str(Path(mount.source).resolve()), mount.target)]


def _parents(targets: tuple[str, ...], own: tuple[str, ...]) -> list[str]:
    """Make the folders above mounts ourselves: bwrap would make them private to root."""
    above = {folder for target in targets for folder in PurePosixPath(target).parents}
    shown = {PurePosixPath("/"), *(PurePosixPath("/", name) for name in ("dev", "proc", *own))}
    made = [folder for folder in above - shown if not shown.intersection(folder.parents) - {PurePosixPath("/")}]
    return [option for folder in sorted(made) for option in ("--perms", "0755", "--dir", str(folder))]


def _etc(ours: Path) -> list[str]:
    return [option for path in sorted(ours.iterdir()) for option in ("--ro-bind", str(path), f"/etc/{path.name}")]
