"""What every test can rely on, however pytest was started."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# `make test` says the same of the same commit, always; `make test-random` looks for what no run has found yet.
# Nor does it depend on who else wanted the machine: neither an example nor the drawing of one has a time limit.
TIMELESS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("random", settings.get_profile("default"), derandomize=False, **TIMELESS)
settings.register_profile("repeatable", derandomize=True, print_blob=True, **TIMELESS)
settings.load_profile("repeatable")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and would hand that on to every process that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
