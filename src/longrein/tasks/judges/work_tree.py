"""Judges what lies in the work directory, without running any of it: full marks if every check holds.

Part of a hidden test. ``checks.json`` beside it holds a list of ``{"kind": ..., ...}``; each kind is one function here.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from verdict import write_verdict

_LARGEST_BYTES = 16 << 20
_GIT_TIMEOUT_S = 10
_PLAIN_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"


def content_of(path: str) -> bytes | None:
    """A regular file's bytes; a link, a device or something huge is not an answer."""
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST_BYTES:
            return None
        return Path(path).read_bytes()
    except OSError:
        return None


def text_of(path: str) -> str | None:
    """Its text without white space at the ends of lines and of the file."""
    data = content_of(path)
    if data is None:
        return None
    lines = data.decode(errors="replace").replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).rstrip("\n")


def text(path: str, text: str) -> bool:
    """The file says this, white space at the ends aside."""
    return text_of(path) == text.rstrip("\n")


def same_lines(path: str, lines: list[str]) -> bool:
    """The file has these lines, in any order."""
    found = text_of(path)
    return found is not None and sorted(found.split("\n")) == sorted(lines)


def sha256(path: str, digest: str) -> bool:
    """The file has these bytes."""
    data = content_of(path)
    return data is not None and hashlib.sha256(data).hexdigest() == digest


def json_value(path: str, value: Any) -> bool:
    """The file is JSON of this value."""
    found = text_of(path)
    try:
        return found is not None and json.loads(found) == value
    except (ValueError, RecursionError):
        return False


def absent(path: str) -> bool:
    """Nothing is there."""
    return not os.path.lexists(path)


def folder(path: str) -> bool:
    """A folder is there."""
    return Path(path).is_dir() and not Path(path).is_symlink()


def executable(path: str, executable: bool) -> bool:
    """A file that may be run by its owner, or may not."""
    found = Path(path)
    return found.is_file() and bool(found.lstat().st_mode & stat.S_IXUSR) == executable


def link(path: str, target: str) -> bool:
    """A symlink with this text."""
    return Path(path).is_symlink() and str(Path(path).readlink()) == target


def only(paths: list[str]) -> bool:
    """Files and links are these and no others."""
    found = {
        os.path.relpath(os.path.join(where, name), ".")  # noqa: PTH118 - os.walk speaks text
        for where, folders, files in os.walk(".")
        for name in (*files, *(name for name in folders if Path(where, name).is_symlink()))
    }
    return found == set(paths)


def archive(path: str, members: dict[str, str]) -> bool:
    """A tar file with these regular members, by the SHA-256 of what they hold."""
    if content_of(path) is None:
        return False
    found: dict[str, str] = {}
    try:
        with tarfile.open(path) as opened:
            for member in opened:
                if member.isdir():
                    continue
                data = opened.extractfile(member) if member.isreg() and member.size <= _LARGEST_BYTES else None
                if data is None or len(found) > len(members):
                    return False
                found[member.name.removeprefix("./")] = hashlib.sha256(data.read()).hexdigest()
    except (tarfile.TarError, OSError, EOFError):
        return False
    return found == members


def git(repository: str, argv: list[str], output: str) -> bool:
    """What a plumbing command of git says. The repository's own settings could run programs: they are put aside."""
    inside = Path(repository, ".git")
    if inside.is_symlink() or not inside.is_dir():
        return False
    try:
        for name in ("config", "config.worktree", "commondir"):
            (inside / name).unlink(missing_ok=True)
        (inside / "config").write_text(_PLAIN_CONFIG)
        said = subprocess.run(
            ["/usr/bin/git", "-c", "safe.directory=*", f"--git-dir={inside}", *argv],
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
            env={"PATH": "/usr/bin:/bin", "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent", "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return said.returncode == 0 and said.stdout.decode(errors="replace").strip() == output.strip()


_KINDS: dict[str, Callable[..., bool]] = {
    check.__name__: check
    for check in (text, same_lines, sha256, json_value, absent, folder, executable, link, only, archive, git)
}


def holds(check: dict[str, Any]) -> bool:
    """Whether one check holds in the current directory."""
    arguments = dict(check)
    kind = _KINDS[arguments.pop("kind")]
    try:
        return kind(**arguments)
    except Exception:  # noqa: BLE001 - damaged archives, depths: what an answer makes a check raise is the answer's
        return False


def main() -> None:
    """Judge the current directory."""
    checks = json.loads(Path(__file__).resolve().with_name("checks.json").read_text())
    passed = sum(holds(check) for check in checks)
    write_verdict(float(passed == len(checks)), passed, len(checks))


if __name__ == "__main__":
    main()
