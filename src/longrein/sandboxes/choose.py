"""Which sandbox to use here."""

from __future__ import annotations

import logging
import subprocess
from functools import cache
from typing import Literal

from longrein.errors import ConfigError, SandboxError
from longrein.sandboxes.base import SandboxBackend
from longrein.sandboxes.bubblewrap import BubblewrapBackend, find_bwrap
from longrein.sandboxes.container import ContainerBackend
from longrein.sandboxes.local import SubprocessBackend

_LOG = logging.getLogger(__name__)
_PROBE = ("--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", "/usr/bin/true")
_PROBE_TIMEOUT_S = 10.0

BackendName = Literal["auto", "bubblewrap", "subprocess", "docker", "podman"]


def choose_backend(name: BackendName, *, rootfs: str = "", image: str = "") -> SandboxBackend:
    """The backend of that name; ``auto`` is bubblewrap if it starts here, else a plain subprocess, loudly.

    Args:
        name: as in the run file.
        rootfs: for bubblewrap, see :class:`BubblewrapBackend`.
        image: for ``docker`` and ``podman``: what containers are made of.

    Raises:
        ConfigError: bubblewrap was asked for by name and does not start here, or a container has no image.
    """
    if name == "subprocess":
        return SubprocessBackend()
    if name in ("docker", "podman"):
        return _container_backend(name, image)
    complaint = _bubblewrap_complaint()
    if not complaint:
        return BubblewrapBackend(rootfs=rootfs)
    if name == "bubblewrap":
        raise ConfigError(
            f"bubblewrap does not start here: {complaint}. Install bubblewrap and allow user namespaces, or set "
            'backend = "subprocess" (no isolation)'
        )
    _LOG.warning("bubblewrap does not start here, falling back to plain subprocesses: %s", complaint)
    return SubprocessBackend()


def _container_backend(client: str, image: str) -> ContainerBackend:
    if not image:
        raise ConfigError(f"backend {client!r} needs an image; set sandbox.image to one that {client} has")
    backend = ContainerBackend(client, image)
    backend.check()
    return backend


@cache
def _bubblewrap_complaint() -> str:
    """Why bubblewrap does not start on this machine; empty if it does."""
    try:
        probe = subprocess.run(
            [find_bwrap(), *_PROBE],
            capture_output=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (SandboxError, OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if probe.returncode == 0 else probe.stderr.decode(errors="replace").strip() or "no reason given"
