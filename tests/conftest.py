"""What every test can rely on, however pytest was started."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and would hand that on to every process that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
