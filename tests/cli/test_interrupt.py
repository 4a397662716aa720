"""Ctrl-C while the main thread is inside a native call that checks no signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

SCRIPT = """
import hashlib
from longrein.cli.interrupt import bounded_interrupt
with bounded_interrupt():
    print("in", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 10**9)
"""


@pytest.mark.alone
def test_a_long_native_call_does_not_hold_the_process() -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        time.sleep(0.3)
        started_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        _out, err = process.communicate(timeout=20)
        assert time.monotonic() - started_s < 5.0
        assert process.returncode == 130
        assert b"interrupted" in err
    finally:
        process.kill()
