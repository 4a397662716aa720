"""What a session's sandbox costs: python bench/sandbox.py [--quick]

A session is: make a sandbox with a reachable port, run `true`, collect, close. Plain subprocesses are measured in the
same run, in turn with the real ones, since machines are noisy: what counts is the difference. The bare program's own
start, `/usr/bin/env true`, is there for scale. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import msgspec

from longrein.sandboxes.base import SandboxBackend, SandboxSpec
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.sandboxes.local import SubprocessBackend

BUDGET_MS = 50.0
"""Start of a session beyond the agent's own (blueprint, Sandboxes)."""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of one session."""

    create: float
    run: float
    close: float
    cpu: float
    """Of this process and of everything that ended below it."""

    @property
    def start(self) -> float:
        """Until the command has run: what an agent waits for."""
        return self.create + self.run


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over sessions, ms."""

    sessions: int
    bare_program: float
    plain_start: float
    plain_close: float
    walled_start: float
    walled_close: float
    beyond_bare: float
    """Start in bubblewrap less the bare program."""
    beyond_plain: float
    """Start in bubblewrap less start in the fallback."""
    ratio: float
    walled_start_p90: float
    plain_cpu: float
    walled_cpu: float
    """Means, since the kernel's clock of processes is coarse: what a busy machine cannot change."""
    fifty_at_once_s: float
    """All of them, from the first start to the last close."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 sessions of each kind, and 10 at once")
    parser.add_argument("--sessions", type=int, default=100)
    args = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    with tempfile.TemporaryDirectory(prefix="longrein-bench-") as folder:
        figures = asyncio.run(_measure(Path(folder), 10 if args.quick else args.sessions, 10 if args.quick else 50))
    print(_as_markdown(figures))
    print(json.dumps(msgspec.to_builtins(figures)))
    return 0


async def _measure(folder: Path, count: int, at_once: int) -> Figures:
    plain, walled = SubprocessBackend(root=str(folder / "plain")), BubblewrapBackend(root=str(folder / "walled"))
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    try:
        for backend in (plain, walled):
            await _session(backend, port)
        bare = [_milliseconds(_bare) for _ in range(count)]
        pairs = [(await _session(plain, port), await _session(walled, port)) for _ in range(count)]
        started_s = time.perf_counter()
        await asyncio.gather(*[_session(walled, port) for _ in range(at_once)])
        together_s = time.perf_counter() - started_s
    finally:
        server.close()
        await server.wait_closed()
    plain_start = statistics.median(pair[0].start for pair in pairs)
    walled_start = statistics.median(pair[1].start for pair in pairs)
    return Figures(
        sessions=count,
        bare_program=statistics.median(bare),
        plain_start=plain_start,
        plain_close=statistics.median(pair[0].close for pair in pairs),
        walled_start=walled_start,
        walled_close=statistics.median(pair[1].close for pair in pairs),
        beyond_bare=walled_start - statistics.median(bare),
        beyond_plain=walled_start - plain_start,
        ratio=walled_start / plain_start,
        walled_start_p90=statistics.quantiles([pair[1].start for pair in pairs], n=10)[-1],
        plain_cpu=statistics.fmean(pair[0].cpu for pair in pairs),
        walled_cpu=statistics.fmean(pair[1].cpu for pair in pairs),
        fifty_at_once_s=together_s,
    )


async def _session(backend: SandboxBackend, port: int) -> Times:
    began, cpu = time.perf_counter(), _cpu_s()
    sandbox = await backend.create(SandboxSpec(loopback_ports=(port,), files={"a.txt": b"a"}))
    created = time.perf_counter()
    result = await sandbox.exec(("true",), timeout_s=60)
    ran = time.perf_counter()
    await sandbox.collect()
    await sandbox.close()
    if result.exit_code != 0:
        raise SystemExit(f"`true` failed: {result}")
    closed = time.perf_counter()
    return Times(
        create=1000 * (created - began),
        run=1000 * (ran - created),
        close=1000 * (closed - ran),
        cpu=1000 * (_cpu_s() - cpu),
    )


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _bare() -> None:
    subprocess.run(["/usr/bin/env", "true"], check=True)


def _milliseconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)


def _as_markdown(figures: Figures) -> str:
    lines = [
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}, "
        f"{'root' if os.geteuid() == 0 else 'ordinary user'}",
        "",
        "| median of a session, ms | start | close |",
        "|---|---|---|",
        f"| `env true`, bare | {figures.bare_program:.1f} | |",
        f"| plain subprocess | {figures.plain_start:.1f} | {figures.plain_close:.1f} |",
        f"| bubblewrap (p90 of starts {figures.walled_start_p90:.1f}) | {figures.walled_start:.1f} "
        f"| {figures.walled_close:.1f} |",
        "",
        f"Beyond the program's own start: {figures.beyond_bare:.1f} ms (budget {BUDGET_MS:.0f}); beyond the plain "
        f"subprocess: {figures.beyond_plain:.1f} ms, {figures.ratio:.2f} times. CPU of a session: plain "
        f"{figures.plain_cpu:.1f} ms, bubblewrap {figures.walled_cpu:.1f} ms. "
        f"At once: {figures.fifty_at_once_s:.2f} s.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
