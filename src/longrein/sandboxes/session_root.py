"""The host folder that holds the private folders of all sandboxes of one user."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from longrein.errors import SandboxError


def session_root(root: str) -> Path:
    """``root``, or one folder for each user in the temporary folder; made, and nobody else's.

    Raises:
        SandboxError: it cannot be made, or belongs to somebody else.
    """
    path = Path(root) if root else Path(tempfile.gettempdir()) / f"longrein-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SandboxError(f"no folder for sandboxes at {path}: {error}") from error
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        raise SandboxError(f"{path} belongs to somebody else; remove it, or set TMPDIR to a folder of your own")
    return path.resolve()
