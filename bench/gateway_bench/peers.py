"""The two servers that do the same work, each in a virtual environment of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A package from the index, and the module that must be importable."""

    name: str
    requirement: str
    module: str


OPENENV = Peer(name="openenv", requirement="openenv==0.10.0", module="openenv.core.harness.capture")
VERIFIERS = Peer(name="verifiers", requirement="verifiers==0.4.0", module="verifiers.v1.interception.server")
PEERS = (OPENENV, VERIFIERS)


def python_of(peer: Peer, folder: Path) -> Path:
    """The peer's own interpreter; installs the peer first where that has not been done.

    Raises:
        SystemExit: it cannot be installed or imported. A comparison without a peer is none.
    """
    venv = folder / peer.requirement.replace("==", "-")
    python = venv / "bin" / "python"
    ready = venv / ".ready"
    if not ready.exists():
        _run([sys.executable, "-m", "venv", "--clear", str(venv)], peer)
        _run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", peer.requirement], peer)
        _run([str(python), "-c", f"import {peer.module}"], peer)
        ready.touch()
    return python


def _run(argv: list[str], peer: Peer) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = (done.stderr or done.stdout).strip()[-2000:]
        raise SystemExit(f"the peer {peer.requirement} is missing: {' '.join(argv[:4])} ... ended with:\n{tail}")
