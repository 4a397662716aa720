"""Trees as archives: what goes in comes out, and nothing goes where it should not."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from longrein.integrations.harbor.archives import pack_folder, unpack_folder


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


def test_a_folder_can_come_again(tmp_path: Path) -> None:
    """Harbor fetches logs more than once; the second time links and files are there."""
    source, target = tmp_path / "a", tmp_path / "b"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "link").symlink_to("log")
    for text in ("one", "two"):
        (source / "sub" / "log").write_text(text)
        unpack_folder(pack_folder(source), target)
    assert (target / "sub" / "link").read_text() == "two"


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


def test_a_hostile_archive_writes_nothing_outside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = tmp_path / "deep" / "target"
    unpack_folder(hostile(), target)
    assert "../outside" in caplog.text
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "deep",
        "deep/target",
        "deep/target/fine",
        "deep/target/hard",
    ]


def test_nothing_is_written_through_a_link_of_the_same_archive(tmp_path: Path) -> None:
    """Nor through one that was there: an agent makes both, on two days."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "old").symlink_to(tmp_path / "outside")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        link = tarfile.TarInfo("new")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "outside")
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("new/file"))
    unpack_folder(buffer.getvalue(), tmp_path / "target")
    again = io.BytesIO()
    with tarfile.open(fileobj=again, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("old/file"))
    with pytest.raises(OSError, match="old"):
        unpack_folder(again.getvalue(), tmp_path / "target")
    assert list((tmp_path / "outside").iterdir()) == []
