"""The probes of the sandbox fail to get out of bubblewrap, and do get out of plain subprocesses."""

from __future__ import annotations

from pathlib import Path

import pytest

from longrein.doctor.check import Check, examine
from longrein.doctor.sandbox import sandbox_checks
from longrein.errors import ConfigError
from longrein.sandboxes.base import SandboxBackend
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.sandboxes.local import SubprocessBackend

CHECKS = sandbox_checks(BubblewrapBackend)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.about.name)
async def test_bubblewrap_passes(check: Check) -> None:
    finding = await examine(check, 300)
    assert finding.status == "pass", finding


@pytest.mark.filterwarnings("ignore:sandboxes are plain subprocesses")
@pytest.mark.parametrize(
    ("at", "said"),
    list(
        enumerate(
            (
                "a port that is not the gateway's, reached",
                "readable from inside: a file in the host's temporary folder, our environment",
                "this process is visible from inside",
                "writable from inside: the host's temporary folder",
                "256 MiB were taken where 96 are allowed; 60 processes were started where 24 are allowed; "
                "a file of 64 MiB was written where 16 are allowed",
            )
        )
    ),
    ids=[check.about.name for check in CHECKS],
)
async def test_a_plain_subprocess_fails(at: int, said: str, tmp_path: Path) -> None:
    finding = await examine(sandbox_checks(lambda: SubprocessBackend(str(tmp_path)))[at], 300)
    assert finding.status == "fail", finding
    assert said in finding.seen, finding
    assert finding.fix
    assert list(tmp_path.iterdir()) == []


async def test_a_backend_that_cannot_be_had_is_a_failure() -> None:
    def absent() -> SandboxBackend:
        raise ConfigError("bubblewrap does not start here")

    for check in sandbox_checks(absent):
        finding = await examine(check, 300)
        assert (finding.status, finding.seen) == ("fail", "bubblewrap does not start here")
