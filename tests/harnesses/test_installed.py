from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from longrein.harnesses.installed import installed, node


def test_the_nearest_folder_above_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert installed("bin/x") == below / ".agents/bin/x", "where it would be"
    for folder in (tmp_path, tmp_path / "a"):
        (folder / ".agents/bin").mkdir(parents=True)
        (folder / ".agents/bin/x").touch()
    assert installed("bin/x") == tmp_path / "a/.agents/bin/x"


def test_node_is_the_installed_one_or_that_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert node().name == "node"
    assert node().is_file()
    (tmp_path / ".agents/bin").mkdir(parents=True)
    shutil.copy("/bin/true", tmp_path / ".agents/bin/node")
    assert node() == tmp_path / ".agents/bin/node"
