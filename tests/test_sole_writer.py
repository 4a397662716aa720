"""One process alone writes; a dead one does not count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from longrein.errors import WorkerError
from longrein.sole_writer import sole_writer

HOLD = """
import sys, time
from pathlib import Path
from longrein.sole_writer import sole_writer
with sole_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(3600)
"""


def test_a_second_writer_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    path = tmp_path / "run" / "rollouts"
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(WorkerError, match=r"another process writes to .*run; wait for it"), sole_writer(path):
            pass
    finally:
        first.kill()
        first.communicate()
    with sole_writer(path, timeout_s=60.0):
        pass
