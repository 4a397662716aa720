"""Trees as archives: what goes in comes out, and nothing goes where it should not."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.errors import SandboxError
from longrein.integrations.harbor.archives import pack_folder, pack_tree, unpack_folder, unpack_tree
from longrein.sandboxes.base import SandboxLimits, WorkFile, WorkTree

names = st.text("ab é.", min_size=1, max_size=3).filter(lambda name: name.strip(".") and name == name.strip())
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(paths, st.builds(WorkFile, data=st.binary(max_size=20), executable=st.booleans()), max_size=5),
    st.dictionaries(paths, st.sampled_from(["a", "../x", "/etc/passwd"]), max_size=3),
)
def test_a_tree_comes_back_as_it_was(files: dict[str, WorkFile], symlinks: dict[str, str]) -> None:
    tree = WorkTree(files=files, symlinks=symlinks, folders=("kept", "kept/empty"))
    assert unpack_tree(pack_tree(tree), SandboxLimits()) == tree


def test_a_folder_comes_back_without_what_was_not_wanted(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    (source / "empty").mkdir(parents=True)
    (source / "run").write_bytes(b"#!/bin/sh\n")
    (source / "run").chmod(0o755)
    (source / "Dockerfile").touch()
    (source / "link").symlink_to("run")
    unpack_folder(pack_folder(source, without={"Dockerfile"}), target)
    assert sorted(path.name for path in target.iterdir()) == ["empty", "link", "run"]
    assert (target / "run").stat().st_mode & 0o100 and (target / "link").readlink() == Path("run")


def hostile() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("../outside", "/absolute", "./fine", "sub/../../outside"):
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"bad"))
        for name, kind in (("pipe", tarfile.FIFOTYPE), ("device", tarfile.CHRTYPE)):
            special = tarfile.TarInfo(name)
            special.type = kind
            archive.addfile(special)
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "../.."
        archive.addfile(link)
        hard = tarfile.TarInfo("hard")
        hard.type, hard.linkname = tarfile.LNKTYPE, "./fine"
        archive.addfile(hard)
    return buffer.getvalue()


def test_a_hostile_archive_writes_nothing_outside(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    unpack_folder(hostile(), target)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "deep",
        "deep/target",
        "deep/target/absolute",
        "deep/target/fine",
        "deep/target/hard",
    ]


def test_a_hostile_archive_is_collected_as_what_it_is() -> None:
    tree = unpack_tree(hostile(), SandboxLimits())
    assert tree.files == {"fine": WorkFile(data=b"bad"), "hard": WorkFile(data=b"bad")}
    assert (tree.symlinks, tree.special) == ({"link": "../.."}, ("pipe", "device"))


def test_what_exceeds_the_limits_is_named(tmp_path: Path) -> None:
    tree = WorkTree(files={f"f{n}": WorkFile(data=b"x" * 10) for n in range(4)})
    assert len(unpack_tree(pack_tree(tree), SandboxLimits(collect_bytes=25)).left_out) == 2
    assert len(unpack_tree(pack_tree(tree), SandboxLimits(collect_entries=1)).left_out) == 3
    with pytest.raises(SandboxError, match="no tar"):
        unpack_tree(b"garbage" * 200, SandboxLimits())
