"""Checks: what an agent in its sandbox cannot reach, each tried from inside and looked for from outside."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from longrein.doctor.check import About
from longrein.doctor.result import Verdict, cannot_tell, combined, failed, passed
from longrein.errors import SandboxError
from longrein.sandboxes.base import ExecResult, Sandbox, SandboxBackend, SandboxLimits, SandboxSpec

Backend = Callable[[], SandboxBackend]
"""Makes the backend. Raises :class:`~longrein.errors.ConfigError` where it cannot work."""
TIMEOUT_S = 20.0
NO_SUCH_COMMAND = 127
FIX = 'install bubblewrap, allow user namespaces and set sandbox.backend = "bubblewrap"'
MARKER = "LONGREIN_DOCTOR_PROBE"
SMALL = SandboxLimits(memory_bytes=96 << 20, pids=24, disk_bytes=16 << 20)
BEYOND_MEMORY_MIB = 256
BEYOND_PIDS = 60
BEYOND_DISK_MIB = 64


@asynccontextmanager
async def _sandbox(backend: Backend, spec: SandboxSpec) -> AsyncGenerator[Sandbox, None]:
    sandbox = await backend().create(spec)
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def _run(sandbox: Sandbox, script: str) -> ExecResult:
    """Raises :class:`~longrein.errors.SandboxError` where there is no bash: nothing was tried then."""
    result = await sandbox.exec(("bash", "-c", script), timeout_s=TIMEOUT_S)
    if result.exit_code == NO_SUCH_COMMAND:
        raise SandboxError("there is no bash in the sandbox, which agents and verifiers need; put it into the image")
    return result


def _said(result: ExecResult) -> str:
    return result.stdout.decode(errors="replace")


class Network:
    """Listens on two ports of the host, of which the sandbox is promised one."""

    about = About(name="sandbox_network", certifies="the gateway's port is reachable from inside, and no other")

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`."""
        calls: dict[str, int] = {"gateway": 0, "other": 0}

        def answer(which: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
            def count(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                calls[which] += 1
                writer.write(b"ok\n")
                writer.close()

            return count

        gateway = await asyncio.start_server(answer("gateway"), "127.0.0.1", 0)
        other = await asyncio.start_server(answer("other"), "0.0.0.0", 0)
        async with gateway, other:
            ports = [server.sockets[0].getsockname()[1] for server in (gateway, other)]
            async with _sandbox(self._backend, SandboxSpec(loopback_ports=(ports[0],))) as sandbox:
                result = await _run(sandbox, _knock(ports[0], ports[1]))
        devices = [line for line in _said(result).split() if line != "lo"]
        if calls["other"] or devices:
            seen = f"reached {calls['other']} times" if calls["other"] else f"devices {', '.join(devices)}"
            return failed(f"the host's network is there: a port that is not the gateway's, {seen}", FIX)
        if not calls["gateway"]:
            return failed("the gateway's port cannot be reached from inside", "see whether the sandbox has bash and lo")
        return passed("the gateway's port answers, no other port and no device is there")


def _knock(gateway: int, other: int) -> str:
    addresses = ["127.0.0.1", *_own_addresses()]
    knocks = [f"127.0.0.1/{gateway}", *(f"{address}/{other}" for address in addresses)]
    tries = "; ".join(f"(exec 3<>/dev/tcp/{knock}) 2>/dev/null" for knock in knocks)
    return f"{tries}; tail -n +3 /proc/net/dev | cut -d: -f1"


def _own_addresses() -> list[str]:
    """This machine's addresses on its networks."""
    with suppress(OSError):
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)})
    return []


class Files:
    """Writes a secret on the host, and another into our own environment."""

    about = About(name="sandbox_files", certifies="files and environment of the host cannot be read from inside")

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`."""
        begun_with = _environment()
        secret = secrets.token_hex(16)
        with tempfile.TemporaryDirectory(prefix="longrein-doctor-") as name:
            folder = Path(name)
            folder.chmod(0o755)
            (folder / "secret").write_text(secret)
            os.environ[MARKER] = secret
            try:
                async with _sandbox(self._backend, SandboxSpec()) as sandbox:
                    read = await _run(sandbox, f"cat '{folder}/secret'")
                    environment = await _run(sandbox, "env; cat /proc/[0-9]*/environ")
                    home = await _run(sandbox, f"ls -A '{Path.home()}'")
            finally:
                del os.environ[MARKER]
        found = ["a file in the host's temporary folder"] if secret in _said(read) else []
        if secret in _said(environment) or begun_with in environment.stdout:
            found.append("our environment")
        if Path.home().exists() and any(Path.home().iterdir()) and _said(home).strip():
            found.append(f"the folder {Path.home()}")
        return (
            failed(f"readable from inside: {', '.join(found)}", FIX) if found else passed("nothing of ours is readable")
        )


def _environment() -> bytes:
    """What this process began with; what nobody has, where there is no telling."""
    with suppress(OSError):
        return Path("/proc/self/environ").read_bytes() or secrets.token_bytes()
    return secrets.token_bytes()


class Processes:
    """Looks for this very process from inside."""

    about = About(name="sandbox_processes", certifies="processes of the host cannot be seen from inside")

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`."""
        try:
            ours = Path("/proc/self/cmdline").read_bytes()
        except OSError:
            return cannot_tell("this system has no /proc")
        async with _sandbox(self._backend, SandboxSpec()) as sandbox:
            result = await _run(sandbox, "for p in /proc/[0-9]*; do cat $p/cmdline; echo; done")
        if ours in result.stdout:
            return failed("this process is visible from inside", FIX)
        return passed(f"{len(result.stdout.splitlines())} processes are visible, none of ours")


class Writes:
    """Has the sandbox write into a folder of the host that anybody may write to."""

    about = About(name="sandbox_writes", certifies="nothing outside the work directory can be written from inside")

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`."""
        with tempfile.TemporaryDirectory(prefix="longrein-doctor-") as name:
            folder = Path(name)
            folder.chmod(0o777)
            async with _sandbox(self._backend, SandboxSpec()) as sandbox:
                await _run(sandbox, f"mkdir -p '{folder}'; echo x > '{folder}/written'")
                system = await _run(sandbox, "for d in / /usr /usr/bin /etc; do test -w $d && echo $d; done")
            written = (folder / "written").exists()
        places = ["the host's temporary folder"] * written + _said(system).split()
        if places:
            return failed(f"writable from inside: {', '.join(places)}", FIX)
        return passed("a file written to the host's folder did not arrive; the system is read-only")


class Limits:
    """Takes more memory and disk, and starts more processes, than a small sandbox allows."""

    about = About(name="sandbox_limits", certifies="the limits on memory, processes and disk are in force")
    fix = (
        "run in a delegated cgroup (`systemd-run --user --scope -p Delegate=yes`) or as root, and use bubblewrap "
        '(sandbox.backend = "bubblewrap")'
    )

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`."""
        return combined([await self._memory(), await self._processes(), await self._disk()])

    async def _memory(self) -> Verdict:
        async with _sandbox(self._backend, SandboxSpec(limits=SMALL)) as sandbox:
            script = f"dd if=/dev/zero of=/dev/null bs={BEYOND_MEMORY_MIB}M count=1 && echo whole"
            result = await _run(sandbox, script)
        if "whole" in _said(result):
            limit = SMALL.memory_bytes >> 20
            return failed(f"{BEYOND_MEMORY_MIB} MiB were taken where {limit} are allowed", self.fix)
        return passed("a process over the memory limit is killed")

    async def _processes(self) -> Verdict:
        # sh, since bash tries again for half a minute.
        script = f"i=0; while [ $i -lt {BEYOND_PIDS} ]; do sleep 5 & i=$((i+1)); done; echo whole"
        async with _sandbox(self._backend, SandboxSpec(limits=SMALL)) as sandbox:
            process = await sandbox.start(("sh", "-c", script))
            result = await process.wait(2.0)
            await process.kill()
        if "whole" in _said(result):
            return failed(f"{BEYOND_PIDS} processes were started where {SMALL.pids} are allowed", self.fix)
        return passed("no more processes than allowed start")

    async def _disk(self) -> Verdict:
        async with _sandbox(self._backend, SandboxSpec(limits=SMALL)) as sandbox:
            result = await _run(sandbox, f"dd if=/dev/zero of=large bs=1M count={BEYOND_DISK_MIB} && echo whole")
        if "whole" in _said(result):
            limit = SMALL.disk_bytes >> 20
            return failed(f"a file of {BEYOND_DISK_MIB} MiB was written where {limit} are allowed", self.fix)
        return passed("no larger files than allowed are written")


def sandbox_checks(backend: Backend) -> tuple[Network, Files, Processes, Writes, Limits]:
    """All of them."""
    return Network(backend), Files(backend), Processes(backend), Writes(backend), Limits(backend)
