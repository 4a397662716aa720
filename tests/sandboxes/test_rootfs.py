"""Another root file system than the host's."""

from __future__ import annotations

from pathlib import Path

import pytest

from longrein.errors import SandboxError
from longrein.sandboxes import bwrap_system
from longrein.sandboxes.base import SandboxSpec
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.types import Mount
from tests.sandboxes.inside import left_behind, sh
from tests.sandboxes.whole_root import make_root

LOOK = "cat /etc/os-release; ls /usr/lib/python3 /usr/share 2>/dev/null; cat /proc/self/comm; id -un; pwd"
NOTHING: dict[str, list[str]] = {"folders": [], "processes": [], "cgroups": []}


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(tmp_path_factory.mktemp("rootfs") / "root")


@pytest.fixture(params=["overlay", "bound"])
def backend(
    request: pytest.FixtureRequest, root: Path, rootfs: Path, monkeypatch: pytest.MonkeyPatch
) -> BubblewrapBackend:
    if request.param == "bound":
        monkeypatch.setattr(bwrap_system, "_overlay_works", lambda bwrap, root: False)
    return BubblewrapBackend(root=str(root), rootfs=str(rootfs))


async def test_its_programs_are_there_and_the_hosts_are_not(
    backend: BubblewrapBackend, rootfs: Path, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "tool").write_text("mounted\n")
    mount = Mount(source=str(tmp_path / "agent"), target="/opt/agent")
    sandbox = await backend.create(SandboxSpec(readonly_mounts=(mount,), folders=("/tests",), files={"a": b"A\n"}))
    result = await sandbox.exec(sh(f"{LOOK}; cat a /opt/agent/tool; touch /tests/x ~/x /tmp/x"), timeout_s=20)
    assert result.stdout == b"ID=ours\ncat\nagent\n/workdir\nA\nmounted\n", result.stderr
    assert (await sandbox.exec(sh("ls /tests ~ /tmp"), timeout_s=20)).stdout.count(b"x\n") == 3
    # Whether or not a command may write to the system, nothing of it stays.
    await sandbox.exec(sh("touch /planted /usr/planted /etc/os-release; echo ID=x > /etc/os-release"), timeout_s=20)
    again = await sandbox.exec(sh("ls /planted /usr/planted; cat /etc/os-release"), timeout_s=20)
    assert again.stdout == b"ID=ours\n"
    await sandbox.close()
    assert not (rootfs / "planted").exists() and (rootfs / "etc" / "os-release").read_text() == "ID=ours\n"
    assert left_behind(root) == NOTHING


async def test_an_overlay_that_does_not_work_is_said_once(
    root: Path, rootfs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = BubblewrapBackend(root=str(root), rootfs=str(rootfs))
    bwrap_system._overlay_works.cache_clear()  # pyright: ignore[reportPrivateUsage]
    old = tmp_path / "bwrap"
    old.write_text("#!/bin/sh\necho 'Unknown option --overlay-src' >&2; exit 1\n")
    old.chmod(0o755)
    for _ in range(2):
        made = bwrap_system.system_of(str(rootfs), str(old), as_root=False)
        assert isinstance(made, bwrap_system.BoundRoot)
    assert caplog.text.count("Unknown option --overlay-src") == 1
    await (await backend.create(SandboxSpec())).close()


async def test_a_folder_that_is_no_system_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"has no /bin/sh"):
        await BubblewrapBackend(root=str(root), rootfs=str(tmp_path)).create(SandboxSpec())
