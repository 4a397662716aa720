"""Who the processes of a sandbox are on the host: an unprivileged user of their own, or ourselves.

Root mounts what the session's user could not reach (an interpreter under ``/root``), then gives everything up:
``setpriv`` inside changes to a uid that nobody else has, without any capability. An ordinary user gets the same
from a user namespace.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Protocol

from longrein.errors import SandboxError
from longrein.sandboxes.tree import Owner

SETPRIV = "/usr/bin/setpriv"
_INSIDE_ID = 1000
# Unused by distributions, systemd and /etc/subuid; the second range is for root inside a rootless container.
_SESSION_IDS = (range(0x7000_0000, 0x7FFF_FFFF), range(20_000, 60_000))


class Identity(Protocol):
    """How bwrap is asked for a user, and how the command is started as that user."""

    @property
    def owner(self) -> Owner:
        """Owner of the sandbox's files, as the host counts."""
        ...

    @property
    def inside_id(self) -> int:
        """uid and gid as seen inside."""
        ...

    @property
    def options(self) -> tuple[str, ...]:
        """Options of bwrap: namespaces and capabilities."""
        ...

    @property
    def prefix(self) -> tuple[str, ...]:
        """What stands before the command."""
        ...


class SessionUser:
    """For root: a uid of the session's own."""

    def __init__(self, uid: int) -> None:
        self._uid = uid

    @property
    def owner(self) -> Owner:
        """The session's uid, and a gid of the same number."""
        return Owner(uid=self._uid, gid=self._uid)

    @property
    def inside_id(self) -> int:
        """The same inside: there is no user namespace."""
        return self._uid

    @property
    def options(self) -> tuple[str, ...]:
        """Every namespace but the user's; the capabilities that ``setpriv`` needs to drop the rest."""
        return (
            *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
            *("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"),
        )

    @property
    def prefix(self) -> tuple[str, ...]:
        """Become the session's user, for good."""
        user = ("--reuid", str(self._uid), "--regid", str(self._uid), "--clear-groups")
        return (SETPRIV, *user, "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all", "--no-new-privs", "--")


class OrdinaryUser:
    """For everybody else: ourselves, as uid 1000 of a user namespace."""

    @property
    def owner(self) -> Owner:
        """Ourselves."""
        return Owner(uid=os.getuid(), gid=os.getgid())

    @property
    def inside_id(self) -> int:
        """A fixed one, so that transcripts are the same everywhere."""
        return _INSIDE_ID

    @property
    def options(self) -> tuple[str, ...]:
        """Every namespace; bwrap itself drops all capabilities."""
        return ("--unshare-all", "--uid", str(_INSIDE_ID), "--gid", str(_INSIDE_ID))

    @property
    def prefix(self) -> tuple[str, ...]:
        """Nothing to do."""
        return ()


def new_identity() -> Identity:
    """A fresh identity for one sandbox.

    Raises:
        SandboxError: we are root and ``setpriv`` is missing, or no second uid exists in our user namespace.
    """
    if os.geteuid() != 0:
        return OrdinaryUser()
    if not os.access(SETPRIV, os.X_OK):
        raise SandboxError(f"{SETPRIV} not found: install util-linux, or run Longrein as an ordinary user")
    return SessionUser(_free_id())


def new_owner() -> Owner:
    """Who owns the files of a sandbox whose walls somebody else builds: a uid of its own for root, else ourselves."""
    if os.geteuid() != 0:
        return Owner(uid=os.getuid(), gid=os.getgid())
    uid = _free_id()
    return Owner(uid=uid, gid=uid)


def _free_id() -> int:
    mapped = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    for ids in _SESSION_IDS:
        if any(first <= ids.start and ids.stop <= first + count for first, _, count in mapped):
            return ids.start + secrets.randbelow(len(ids))
    raise SandboxError("our user namespace has no spare uid for the agent; run Longrein as an ordinary user")
