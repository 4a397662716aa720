from __future__ import annotations

import pytest

from longrein.errors import ConfigError, SandboxError
from longrein.sandboxes import choose, local
from longrein.sandboxes.base import SandboxSpec
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.sandboxes.choose import choose_backend
from longrein.sandboxes.local import SubprocessBackend
from longrein.types import Mount


def test_auto_is_bubblewrap_where_it_starts() -> None:
    assert isinstance(choose_backend("auto"), BubblewrapBackend)
    assert isinstance(choose_backend("bubblewrap"), BubblewrapBackend)
    assert isinstance(choose_backend("subprocess"), SubprocessBackend)


def test_where_bubblewrap_does_not_start(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    choose._bubblewrap_complaint.cache_clear()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(choose, "_PROBE", ("--no-such-option",))
    try:
        assert isinstance(choose_backend("auto"), SubprocessBackend)
        assert "no-such-option" in caplog.text
        with pytest.raises(ConfigError, match=r"no-such-option.*backend = \"subprocess\""):
            choose_backend("bubblewrap")
    finally:
        choose._bubblewrap_complaint.cache_clear()  # pyright: ignore[reportPrivateUsage]


async def test_the_fallback_warns_once_and_says_what_to_do(root: object, monkeypatch: pytest.MonkeyPatch) -> None:
    local._warn_once.cache_clear()  # pyright: ignore[reportPrivateUsage]
    backend = SubprocessBackend(root=str(root))
    with pytest.warns(RuntimeWarning, match="Install bubblewrap") as caught:
        first = await backend.create(SandboxSpec())
        second = await backend.create(SandboxSpec())
    assert len(caught) == 1
    await first.close()
    await second.close()


@pytest.mark.filterwarnings("ignore:sandboxes are plain subprocesses:RuntimeWarning")
async def test_the_fallback_refuses_mounts_it_cannot_make(root: object) -> None:
    with pytest.raises(SandboxError, match="use bubblewrap"):
        await SubprocessBackend(root=str(root)).create(
            SandboxSpec(readonly_mounts=(Mount(source="/usr", target="/opt/x"),))
        )


async def test_a_sandbox_that_cannot_start_says_why(root: object) -> None:
    sandbox = await BubblewrapBackend(root=str(root), bwrap="/usr/bin/false").create(SandboxSpec())
    with pytest.raises(SandboxError, match="did not start"):
        await sandbox.exec(("true",), timeout_s=5)
    await sandbox.close()
    missing = await BubblewrapBackend(root=str(root), bwrap="/nonexistent/bwrap").create(SandboxSpec())
    with pytest.raises(SandboxError, match="/nonexistent/bwrap"):
        await missing.exec(("true",), timeout_s=5)
    await missing.close()
    with pytest.raises(SandboxError, match="no folder for sandboxes"):
        await BubblewrapBackend(root="/proc/nowhere").create(SandboxSpec())
