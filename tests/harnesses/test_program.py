from __future__ import annotations

from pathlib import Path

import pytest

from longrein.errors import ConfigError
from longrein.harnesses.program import environment_mounts, node_program, python_program
from tests.harnesses.packages import in_place


def test_a_script_of_a_package_comes_with_the_outermost_node_modules(tmp_path: Path) -> None:
    node = tmp_path / "bin" / "node"
    inner = tmp_path / "node_modules" / "a" / "node_modules" / "b" / "cli.js"
    program = node_program(node, inner, ("--quiet",))
    assert program.argv == (str(node), "--quiet", str(inner))
    assert program.mounts == (in_place(node), in_place(tmp_path / "node_modules"))


def test_a_script_outside_of_packages_comes_with_its_folder(tmp_path: Path) -> None:
    assert node_program(tmp_path / "node", tmp_path / "agent" / "cli.js").mounts[1] == in_place(tmp_path / "agent")


def test_links_are_followed_before_anything_is_mounted(tmp_path: Path) -> None:
    """``.agents`` may be a link to another disk; an environment's own python stays the link that it is."""
    real = tmp_path / "real"
    (real / "venv" / "bin").mkdir(parents=True)
    (real / "venv" / "bin" / "python").symlink_to("/usr/bin/python3")
    (tmp_path / "link").symlink_to(real)
    program = python_program(tmp_path / "link" / "venv" / "bin" / "agent")
    assert program.argv == (str(real / "venv/bin/python"), str(real / "venv/bin/agent"))
    assert program.mounts == (in_place(real / "venv"),)


@pytest.mark.parametrize(("home", "base"), [("/opt/py/bin", [Path("/opt/py")]), ("/usr/bin", [])])
def test_an_environment_comes_with_its_base_unless_every_sandbox_has_it(
    home: str, base: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "pyvenv.cfg").write_text(f"include-system-site-packages = false\nhome = {home}\n")
    mounts = environment_mounts(tmp_path / "bin" / "python")
    assert mounts == tuple(in_place(folder) for folder in (tmp_path, *base))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "node").touch()
    with pytest.raises(ConfigError, match=r"Pi 1 is not installed: there is no \S+/cli\.js\. Run `make agents`"):
        node_program(tmp_path / "node", tmp_path / "cli.js").check("Pi 1")
    with pytest.raises(ConfigError, match=r"bin/python and no \S+/bin/mini\."):
        python_program(tmp_path / "bin" / "mini").check("mini")
