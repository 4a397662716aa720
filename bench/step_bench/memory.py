"""Most memory that one step takes beyond model and gradients: in a process of its own, by the kernel's count."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def peak_mb(step: Callable[[], object]) -> float:
    """Growth of the resident set at its peak. Linux only; call ``step`` once before, so that gradients are there."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status_kb("VmRSS")
    step()
    return round((_status_kb("VmHWM") - before) / 1024, 1)


def peak_mb_elsewhere(options: Sequence[str]) -> float:
    """Run the benchmark itself with ``options``, which make it print one such number."""
    command = [sys.executable, sys.argv[0], *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _status_kb(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise SystemExit(f"/proc/self/status has no {field}")
