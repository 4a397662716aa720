"""What came of it: a table to read and one JSON object to compare with budgets."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec

from gateway_bench.cells import Measured
from gateway_bench.extras import Crowd, FirstCalls
from gateway_bench.servers import FLOOR, OURS

CALL_BUDGETS_MS = {"8k/200": 1.0, "8k/2000": 3.0, "64k/200": 6.0, "64k/2000": 8.0}


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is no cell of the table."""

    first_call: FirstCalls
    whole_rollout_ms: float
    paced_event_us: float
    growth_kb: float
    added_latency_ms: float
    crowd: Crowd


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A promise of the design, and what was measured."""

    measured: float
    budget: float
    holds: bool


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The last line of the benchmark."""

    machine: str
    load_average: float
    seconds: float
    cells: dict[str, dict[str, Measured]]
    extras: Extras
    budgets: dict[str, Budget]


def machine() -> str:
    """Processor, cores, Python."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def budgets(cells: dict[str, dict[str, Measured]], extras: Extras) -> dict[str, Budget]:
    """Each budget of the design, held against the cells that every server went through."""
    held: dict[str, Budget] = {}
    for name, cell in cells.items():
        payload, kind = name.split()[:2]
        if _is_compared(cell) and name in (f"{payload} {kind} x16", f"{payload} {kind} x8"):
            held[f"{payload} {kind}, ms"] = _at_most(cell[OURS].cpu_ms, CALL_BUDGETS_MS[payload])
    held["8k/200 streamed, ms"] = _at_most(cells["8k/200 growing x16 streamed"][OURS].cpu_ms, 3.0)
    held["paced event, us"] = _at_most(extras.paced_event_us, 50.0)
    held["memory of an extending call, kB"] = _at_most(extras.growth_kb, 10.0)
    held["calls a second and core"] = _at_least(1e3 / cells["8k/200 growing x16"][OURS].cpu_ms, 800.0)
    held["added latency, ms"] = _at_most(extras.added_latency_ms, 1.5)
    held["500 sessions, MB"] = _at_most(extras.crowd.peak_rss_mb, 1000.0)
    return held


def as_markdown(report: Report) -> str:
    """The tables of ``bench/README.md``."""
    lines = [f"{report.machine}; load average {report.load_average:.1f}; {report.seconds:.0f} s in all.", ""]
    full = {name: cell for name, cell in report.cells.items() if _is_compared(cell)}
    servers = list(dict.fromkeys(name for cell in full.values() for name in cell if name not in (OURS, FLOOR)))
    lines += ["| CPU ms a call | " + " | ".join([OURS, FLOOR, *servers]) + " |", "|---" * (3 + len(servers)) + "|"]
    for name, cell in full.items():
        own = [f"**{cell[OURS].cpu_ms:.2f}**", f"{cell[FLOOR].cpu_ms:.2f}"]
        others = [_compared(cell, server) for server in servers]
        lines.append(f"| {name} | " + " | ".join([*own, *others]) + " |")
    lines += ["", "| budget | measured | at most (or least) | holds |", "|---|---|---|---|"]
    for name, one in report.budgets.items():
        lines.append(f"| {name} | {one.measured:.2f} | {one.budget:g} | {'yes' if one.holds else '**no**'} |")
    return "\n".join([*lines, "", *_sentences(report.extras)])


def _sentences(extras: Extras) -> list[str]:
    first, crowd = extras.first_call, extras.crowd
    return [
        f"First call of a session: {first.unseen_ms:.1f} ms with a prompt never seen,",
        f"{first.group_ms:.1f} ms with one that another member of the group had.",
        f"Rollouts of 20 calls, everything counted: {extras.whole_rollout_ms:.2f} ms a call.",
        f"500 sessions at once: {crowd.calls} calls in {crowd.seconds:.0f} s.",
    ]


def _is_compared(cell: dict[str, Measured]) -> bool:
    return not set(cell) <= {OURS, FLOOR}


def _compared(cell: dict[str, Measured], server: str) -> str:
    return f"{cell[server].cpu_ms:.2f} ({cell[server].over_ours:.1f}x)" if server in cell else "-"


def _at_most(measured: float, budget: float) -> Budget:
    return Budget(measured=measured, budget=budget, holds=measured <= budget)


def _at_least(measured: float, budget: float) -> Budget:
    return Budget(measured=measured, budget=budget, holds=measured >= budget)
