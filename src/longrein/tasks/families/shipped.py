"""Our hidden tests' programs as text, and the script that starts one."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def shipped(judge: str) -> bytes:
    """The source of one module of :mod:`longrein.tasks.judges`."""
    return (files("longrein.tasks.judges") / f"{judge}.py").read_bytes()


def start_script(program: str) -> bytes:
    """A ``test.sh``. ``-I``: nothing that the agent left is imported by the judge itself."""
    return f'#!/bin/sh\nexec python3 -I -B "${{SANDBOX_ROOT:-}}/tests/{program}"\n'.encode()
