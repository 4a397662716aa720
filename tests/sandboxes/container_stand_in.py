#!/usr/bin/env python3
"""A stand-in for `docker`, as a program: containers are processes, what it keeps lies beside it.

It knows as much of the command line as our client uses. A file ``slow-run`` beside it makes a container come late.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
WITH_VALUE = {
    *("--name", "--label", "--network", "--pull", "--cap-drop", "--security-opt", "--user", "--memory"),
    *("--memory-swap", "--pids-limit", "--cpus", "--ulimit", "--workdir", "--userns", "--volume", "--entrypoint"),
}


def run(arguments: list[str]) -> int:
    found: dict[str, str] = {}
    while arguments[0].startswith("--"):
        option = arguments.pop(0)
        found[option] = arguments.pop(0) if option in WITH_VALUE else ""
    while (HERE / "slow-run").exists():
        (HERE / "asked").touch()
        time.sleep(0.02)
    if arguments[0] == "no-such-program":
        keep(found["--name"], found["--label"], 0)
        sys.stderr.write("exec: not found\n")
        return 127
    # The command itself does not matter to those who use this.
    # An engine's container holds nothing of its client open.
    nothing = subprocess.DEVNULL
    container = subprocess.Popen(
        ["sleep", "600"], start_new_session=True, stdin=nothing, stdout=nothing, stderr=nothing
    )
    keep(found["--name"], found["--label"], container.pid)
    return 0 if "--detach" in found else 128 - min(0, container.wait()) % 128


def keep(name: str, label: str, pid: int) -> None:
    (HERE / f"{name}.container").write_text(json.dumps({"label": label, "pid": pid}))


def kept() -> dict[str, dict[str, object]]:
    return {path.stem: json.loads(path.read_text()) for path in HERE.glob("*.container")}


def listed(arguments: list[str]) -> int:
    wanted = arguments[arguments.index("--filter") + 1].removeprefix("label=")
    sys.stdout.write("".join(f"{name}\n" for name, one in kept().items() if str(one["label"]).startswith(wanted)))
    return 0


def inspect(arguments: list[str]) -> int:
    one = kept()[arguments[-1]]
    started = "2026-01-01T00:00:00Z" if one["pid"] else "0001-01-01T00:00:00Z"
    sys.stdout.write(json.dumps({"Pid": one["pid"], "StartedAt": started, "OOMKilled": False}))
    return 0


def kill(arguments: list[str]) -> int:
    for name in arguments[2:]:
        if pid := kept().get(name, {}).get("pid"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(str(pid)), signal.SIGKILL)
    return 0


def remove(arguments: list[str]) -> int:
    kill(arguments)
    for name in arguments[2:]:
        (HERE / f"{name}.container").unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    known = {"run": run, "ps": listed, "inspect": inspect, "kill": kill, "rm": remove}
    sys.exit(known[sys.argv[1]](sys.argv[2:]))
