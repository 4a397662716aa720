"""Change what decides: the run directory with rewards and traces, tools and settings that the verifier uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from longrein.sandboxes.base import SandboxBackend
from tests.sandboxes.escape.attack import wins

OVERWRITE = """
    with open(os.environ["TARGET"], "r+b") as file:
        file.write(b"reward 1.0")
    return True
"""
NEW_FILE = """
    open(os.path.join(os.path.dirname(os.environ["TARGET"]), "planted"), "w").close()
    return True
"""
TOOLS_ON_THE_PATH = """
    for folder in os.environ["PATH"].split(":"):
        try:
            with open(os.path.join(folder, "judge"), "w") as file:
                file.write("#!/bin/sh\\necho passed\\n")
            return True
        except OSError:
            pass
    return False
"""
REMOUNT = """
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    target = os.environ.get("MOUNT", "/usr").encode()
    return libc.mount(None, target, None, 32 | 4096, None) == 0 or libc.umount2(target, 2) == 0
"""
NEW_NAMESPACE = """
    import ctypes
    return ctypes.CDLL(None, use_errno=True).unshare(0x10000000 | 0x00020000) == 0
"""


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "rollouts" / "000001.parquet"
    path.parent.mkdir(parents=True)
    path.write_text("reward 0.0")
    return path


@pytest.mark.parametrize("body", [OVERWRITE, NEW_FILE], ids=["overwrite", "add"])
async def test_rewards_and_traces_on_disk(
    plain: SandboxBackend, walled: SandboxBackend, record: Path, body: str
) -> None:
    env = {"TARGET": str(record)}
    assert not await wins(walled, body, env=env)
    assert record.read_text() == "reward 0.0" and not (record.parent / "planted").exists()
    assert await wins(plain, body, env=env)


async def test_tools_on_the_path(
    plain: SandboxBackend, walled: SandboxBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    assert not await wins(walled, TOOLS_ON_THE_PATH)
    assert await wins(plain, TOOLS_ON_THE_PATH)


async def test_a_namespace_of_its_own_with_all_rights(plain: SandboxBackend, walled: SandboxBackend) -> None:
    """With a user namespace of its own a process may mount, and reaches more of the kernel."""
    if not await wins(plain, NEW_NAMESPACE):
        pytest.skip("the control fails: user namespaces are off on this machine")
    assert not await wins(walled, NEW_NAMESPACE)


async def test_read_only_mounts_made_writable(walled: SandboxBackend) -> None:
    """Without control: on the host it would change the machine. The call itself is the filter's test's."""
    assert not await wins(walled, REMOUNT)
    assert not await wins(walled, REMOUNT, env={"MOUNT": "/"})
