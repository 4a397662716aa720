"""Installed agents as files, without the agents; and what they are launched with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from longrein.types import Endpoint, Mount, Task

ENDPOINT = Endpoint(
    base_url="http://127.0.0.1:4321/s3cret",
    api_key="s3cret",
    model="policy",
    port=4321,
    context_length=8192,
    max_tokens=256,
)
TASK = Task(task_id="t", prompt='-write "hi" to a file', files={"b.py": b"", "a/x.py": b""})


def install_node_agent(root: Path, entry: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``.agents`` of ``root`` with node and one script; the current folder lies below. The script's path."""
    for relative in ("bin/node", entry):
        path = root / ".agents" / relative
        path.parent.mkdir(parents=True)
        path.touch()
    (root / "below").mkdir()
    monkeypatch.chdir(root / "below")
    return root / ".agents" / entry


def install_python_agent(root: Path, entry: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``.agents`` of ``root`` with a virtual environment of this Python and one script. The script's path."""
    script = root / ".agents" / entry
    script.parent.mkdir(parents=True)
    script.touch()
    (script.parent / "python").symlink_to(sys.executable)
    (script.parents[1] / "pyvenv.cfg").write_text("version = 3.11\nhome = /opt/base/bin\n")
    monkeypatch.chdir(root)
    return script


def in_place(path: Path | str) -> Mount:
    return Mount(source=str(path), target=str(path))
