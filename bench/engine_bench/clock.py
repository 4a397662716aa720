"""CPU time of other processes, and what the memory gives."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

_TICKS = os.sysconf("SC_CLK_TCK")


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process and its children, dead ones it has waited for included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        children = " ".join(
            (task / "children").read_text(encoding="utf-8") for task in Path(f"/proc/{pid}/task").iterdir()
        )
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / _TICKS + sum(
        tree_cpu_s(int(child)) for child in children.split()
    )


def bandwidth_gb_s(threads: int) -> float:
    """Best of five reads of a block that no cache holds, by a sum."""
    torch.set_num_threads(threads)
    block = torch.ones(1 << 27, dtype=torch.float32)
    best = 0.0
    for _ in range(5):
        began = time.perf_counter()
        block.sum()
        best = max(best, block.numel() * 4 / (time.perf_counter() - began) / 1e9)
    return best
