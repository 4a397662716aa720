"""Ctrl-C while the main thread is inside a native call that checks no signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
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
        # Nothing else uses the processor now, so it is inside the call.
        running, began_s = psutil.Process(process.pid), time.monotonic()
        before_s = running.cpu_times().user
        while running.cpu_times().user - before_s < 0.3:
            assert time.monotonic() - began_s < 120
            time.sleep(0.05)
        started_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        _out, err = process.communicate(timeout=60)
        assert time.monotonic() - started_s < 20.0, "5 s, if the machine does nothing else; the call takes minutes"
        assert process.returncode == 130
        assert b"interrupted" in err
    finally:
        process.kill()
