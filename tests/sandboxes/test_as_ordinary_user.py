"""The same tests, as an ordinary user. Root's own files are where they cannot be read, so they are shown anew."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from longrein.sandboxes.bubblewrap import find_bwrap

REPOSITORY = Path(__file__).resolve().parents[2]
NOBODY = "65534"


def readable_again() -> list[str]:
    """Options that lay an open folder over each closed one on the way to what the tests need, and show only that."""
    needed = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), REPOSITORY}
    needed |= {Path(entry).resolve() for entry in sys.path if entry and Path(entry).is_dir()}
    closed = {path: [above for above in path.parents if not above.stat().st_mode & 0o001] for path in needed}
    tops = sorted({above[-1] for above in closed.values() if above})
    options = [option for top in tops for option in ("--perms", "0755", "--tmpfs", str(top))]
    for path in sorted(path for path, above in closed.items() if above):
        top = closed[path][-1]
        for folder in reversed([above for above in path.parents if above.is_relative_to(top) and above != top]):
            options += ["--perms", "0755", "--dir", str(folder)]
        options += ["--ro-bind", str(path), str(path)]
    return options


@pytest.mark.root
@pytest.mark.alone
def test_everything_again_as_an_ordinary_user() -> None:
    if os.getuid() != 0:
        pytest.skip("not root: all tests here already run as an ordinary user")
    with tempfile.TemporaryDirectory(prefix="longrein-nobody-") as home:
        os.chown(home, int(NOBODY), int(NOBODY))
        outer = [find_bwrap(), "--die-with-parent", "--dev-bind", "/", "/", *readable_again(), "--cap-add", "ALL"]
        user = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]
        env = ["env", "-i", f"HOME={home}", f"TMPDIR={home}", "PATH=/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1"]
        env += [f"PYTHONPATH={REPOSITORY / 'src'}"]
        env += [f"HYPOTHESIS_STORAGE_DIRECTORY={home}/hypothesis"]
        chosen = ["-m", "not root and not agents and not mutant"]
        chosen += ["-p", "no:cacheprovider", f"--basetemp={home}/pytest", "-q"]
        chosen += [str(Path(__file__).parent), str(REPOSITORY / "tests" / "sessions")]
        done = subprocess.run(
            [*outer, "--", *user, *env, sys.executable, "-m", "pytest", *chosen],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=600,
            check=False,
            text=True,
        )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
