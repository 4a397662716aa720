"""How many threads a pass takes: no more than there are cores that nobody else wants.

The threads of a pass wait for each other in every layer, so one whose core another process wants holds them all up: two
threads then take several times as long as one (docs/engines.md, *Threads*). The kernel tells how busy the cores were.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec

_WINDOW_S = 0.2
_SLACK_CORES = 0.25
"""Others may take that much of a core before a thread is given up: our own clients, the kernel."""
_TIME_FIELDS = 8
"""user, nice, system, idle, iowait, irq, softirq, steal: proc_stat(5)."""
_IDLE_FIELDS = (3, 4)


class CoreTimes(msgspec.Struct, frozen=True, kw_only=True):
    """CPU seconds so far: of everybody on the cores that this process may use, and its own."""

    cores: int
    everybody_s: float
    own_s: float
    wall_s: float


class ThreadCount:
    """The number of threads that pays now, at most ``most``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._now = most
        self._last: CoreTimes | None = None

    def look(self) -> int:
        """The number for the next pass; looks at the kernel's clocks five times a second at most."""
        waits = self._last is not None and time.perf_counter() - self._last.wall_s < _WINDOW_S
        if sys.platform != "linux" or self._most == 1 or waits:
            return self._now
        return self.after(read_core_times())

    def after(self, times: CoreTimes) -> int:
        """The number from now on, by how busy others kept the cores since the last call."""
        last, self._last = self._last, times
        if last is not None and times.wall_s > last.wall_s:
            others_s = (times.everybody_s - last.everybody_s) - (times.own_s - last.own_s)
            free = times.cores - others_s / (times.wall_s - last.wall_s)
            self._now = max(1, min(self._most, int(free + _SLACK_CORES)))
        return self._now


def read_core_times() -> CoreTimes:
    """What the kernel's clocks say now (Linux)."""
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *fields = line.split()
        if name in names:
            ticks += sum(int(field) for place, field in enumerate(fields[:_TIME_FIELDS]) if place not in _IDLE_FIELDS)
    return CoreTimes(
        cores=len(names),
        everybody_s=ticks / os.sysconf("SC_CLK_TCK"),
        own_s=time.process_time(),
        wall_s=time.perf_counter(),
    )
