"""A small root file system out of programs of this machine, for containers and sandboxes that bring their own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

TOOLS = ("sh", "bash", "cat", "ls", "sleep", "env", "id", "touch", "mkdir", "mkfifo", "ln", "head", "grep", "seq", "cp")


def programs_with_libraries(*more: str) -> set[Path]:
    """:data:`TOOLS` and ``more``, and the libraries that they load, as paths of this machine."""
    programs = {Path(found) for tool in (*TOOLS, *more) if (found := shutil.which(tool))} | {Path("/bin/sh")}
    listed = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False).stdout
    words = {word for line in listed.splitlines() for word in line.split() if word.startswith("/")}
    return programs | {Path(word) for word in words if not word.endswith(":")}


def make_root(folder: Path) -> Path:
    """Copy them below ``folder``."""
    for name in ("etc", "tmp", "proc", "dev"):
        (folder / name).mkdir(parents=True)
    (folder / "etc" / "os-release").write_text("ID=ours\n")
    for path in programs_with_libraries("/usr/bin/setpriv"):
        target = folder / str(path).removeprefix("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return folder
