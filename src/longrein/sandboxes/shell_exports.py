"""Environment variables as lines of a shell script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from longrein.errors import SandboxError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def exports(env: Mapping[str, str]) -> str:
    """One ``export`` a line.

    Raises:
        SandboxError: a name that no shell takes.
    """
    for name in env:
        if not _NAME.fullmatch(name):
            raise SandboxError(f"environment variable {name!r}: a shell sets it here, and takes letters, digits and _")
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
