"""The read-only system that a bubblewrap sandbox shows: the host's own programs, or those of another root folder."""

from __future__ import annotations

import logging
import subprocess
from functools import cache
from pathlib import Path
from typing import Protocol

from longrein.errors import SandboxError
from longrein.sandboxes.identity import SETPRIV

_LOG = logging.getLogger(__name__)
SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl", "ca-certificates", "pki", "localtime")
_NOT_OF_THE_ROOT = ("proc", "dev", "sys", "run", "tmp", "home", "workdir", "etc")
_PROBE_TIMEOUT_S = 20.0


class System(Protocol):
    """Where programs and libraries come from. Picklable."""

    @property
    def own_folders(self) -> tuple[str, ...]:
        """Top-level names that are its own, below which no folder can be made for a mount."""
        ...

    @property
    def begin(self) -> list[str]:
        """Options of bwrap that come before every other mount."""
        ...

    @property
    def etc(self) -> list[str]:
        """Options for what it brings to ``/etc``."""
        ...

    @property
    def end(self) -> list[str]:
        """Options that come after every other mount."""
        ...


class HostSystem:
    """The host's ``/usr`` and what programs need of its ``/etc``."""

    @property
    def own_folders(self) -> tuple[str, ...]:
        """``/usr`` and its old names."""
        return ("usr", *SYSTEM_FOLDERS)

    @property
    def begin(self) -> list[str]:
        """Binds."""
        return ["--ro-bind", "/usr", "/usr", *_shown(Path("/"), SYSTEM_FOLDERS)]

    @property
    def etc(self) -> list[str]:
        """Binds of a few files."""
        return [
            option
            for path in (Path("/etc", name) for name in _ETC)
            if path.exists()
            for option in ("--ro-bind", str(path.resolve()), str(path))
        ]

    @property
    def end(self) -> list[str]:
        """The root itself is an empty folder in memory that nobody may write."""
        return ["--remount-ro", "/"]


class OverlaidRoot:
    """Another root folder under a layer in memory, which is gone when the command ends: it may be written to."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def own_folders(self) -> tuple[str, ...]:
        """None: the layer takes new folders anywhere."""
        return ()

    @property
    def begin(self) -> list[str]:
        """The layer."""
        return ["--overlay-src", str(self._root), "--tmp-overlay", "/"]

    @property
    def etc(self) -> list[str]:
        """It is there."""
        return []

    @property
    def end(self) -> list[str]:
        """Nothing."""
        return []


class BoundRoot:
    """Another root folder where the kernel knows no overlays for us: its folders one by one, read-only."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def own_folders(self) -> tuple[str, ...]:
        """All that it has but what every sandbox has of its own."""
        return tuple(sorted({path.name for path in self._root.iterdir()} - {*_NOT_OF_THE_ROOT}))

    @property
    def begin(self) -> list[str]:
        """Binds."""
        return _shown(self._root, self.own_folders)

    @property
    def etc(self) -> list[str]:
        """Binds of all that is not replaced by files of ours."""
        etc = sorted((self._root / "etc").iterdir()) if (self._root / "etc").is_dir() else []
        ours = ("passwd", "group", "hosts", "nsswitch.conf")
        return [
            option
            for path in etc
            if path.name not in ours and not path.is_symlink()
            for option in ("--ro-bind", str(path), f"/etc/{path.name}")
        ]

    @property
    def end(self) -> list[str]:
        """See :class:`HostSystem`."""
        return ["--remount-ro", "/"]


def system_of(rootfs: str, bwrap: str, *, as_root: bool) -> System:
    """The system for a backend; an empty ``rootfs`` is the host's.

    Raises:
        SandboxError: ``rootfs`` holds no system that a sandbox could start.
    """
    if not rootfs:
        return HostSystem()
    root = Path(rootfs).resolve()
    needed = ("bin/sh", SETPRIV[1:]) if as_root else ("bin/sh",)
    for program in needed:
        if not (root / program).exists() and not (root / program).is_symlink():
            raise SandboxError(f"root file system {rootfs!r} has no /{program}; give the folder of a whole one")
    return OverlaidRoot(root) if _overlay_works(bwrap, root) else BoundRoot(root)


@cache
def _overlay_works(bwrap: str, root: Path) -> bool:
    """Try it: version of bwrap, kernel and file system all have a say."""
    options = ["--unshare-all", *OverlaidRoot(root).begin, "--proc", "/proc", "--", "/bin/sh", "-c", ":"]
    try:
        probe = subprocess.run(
            [bwrap, *options], capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        complaint = str(error)
    else:
        complaint = "" if probe.returncode == 0 else probe.stderr.decode(errors="replace").strip() or "no reason given"
    if complaint:
        _LOG.warning("no overlay over %s, so it is shown read-only: %s", root, complaint)
    return not complaint


def _shown(root: Path, names: tuple[str, ...]) -> list[str]:
    options: list[str] = []
    for name in names:
        path = root / name
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), f"/{name}"]
        elif path.exists():
            options += ["--ro-bind", str(path), f"/{name}"]
    return options
