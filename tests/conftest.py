"""What every test can rely on, however pytest was started."""

from __future__ import annotations

import signal

from hypothesis import settings

# `make test` says the same of the same commit, always; `make test-random` looks for what no run has found yet.
settings.register_profile("random", settings.get_profile("default"), derandomize=False)
settings.register_profile("repeatable", derandomize=True, print_blob=True)
settings.load_profile("repeatable")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and would hand that on to every process that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
