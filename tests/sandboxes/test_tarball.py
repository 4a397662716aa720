"""Trees as archives: what goes in comes out, and an archive that was made to harm harms nobody."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.errors import SandboxError
from longrein.sandboxes.base import SandboxLimits, WorkFile, WorkTree
from longrein.sandboxes.tarball import THE_REST, most_bytes, pack, unpack, unpack_compressed, with_status
from longrein.sandboxes.tree import Owner, PrivateTree

LIMITS = SandboxLimits(collect_bytes=1 << 20, collect_entries=100)

names = st.text("ab é.", min_size=1, max_size=3).filter(lambda name: name.strip(".") and name == name.strip())
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(paths, st.builds(WorkFile, data=st.binary(max_size=20), executable=st.booleans()), max_size=5),
    st.dictionaries(paths, st.sampled_from(["a", "../x", "/etc/passwd"]), max_size=3),
)
def test_a_tree_comes_back_as_it_was(files: dict[str, WorkFile], symlinks: dict[str, str]) -> None:
    files = {f"f{number}/{path}/file": file for number, (path, file) in enumerate(files.items())}
    symlinks = {f"l/{path}/link": target for path, target in symlinks.items()}
    tree = WorkTree(files=files, symlinks=symlinks, folders=("kept", "kept/empty"))
    assert unpack(pack(tree), SandboxLimits()) == tree
    assert unpack_compressed(gzip.compress(pack(tree)), SandboxLimits()) == tree


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", **pax: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.pax_headers = kind, link, pax
    return made


def archived(*entries: tarfile.TarInfo) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for one in entries:
            archive.addfile(one, io.BytesIO(bytes(one.size)))
    return made.getvalue()


def of_size(size: int) -> bytes:
    """An archive whose first header claims a size, which may be negative."""
    header = bytearray(archived(entry("a"))[:512])
    header[124:136] = b"\xff" + size.to_bytes(11, "big", signed=True)
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * ord(" "))
    return bytes(header) + archived(entry("b"))


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 43), "GNU.sparse.name": "s"}


@pytest.mark.parametrize(
    ("data", "left_out"),
    [
        (archived(entry("../up"), entry("/etc/x"), entry("a/../../b")), 3),
        (archived(entry("x", path="a\0b")), 1),
        (archived(entry("n" * 300)), 1),
        (archived(entry("hard", tarfile.LNKTYPE, "nowhere")), 1),
        (archived(entry("empty", tarfile.SYMTYPE, ""), entry("long", tarfile.SYMTYPE, "x/" * 3000)), 2),
        (archived(entry("a"), entry("a/b"), entry("a", tarfile.SYMTYPE, "/etc"), entry("a", tarfile.DIRTYPE)), 3),
        (archived(entry("l", tarfile.SYMTYPE, "/etc"), entry("l/x"), entry("d/e"), entry("d")), 2),
        (archived(entry("ok"), entry("s", **SPARSE)), 1),
        (of_size(-1024), 2),
        (of_size(-512), 1),
        (archived(*[entry(f"f{number}") for number in range(3000)]), 1000),
    ],
)
def test_what_cannot_lie_in_a_work_directory_is_left_out(data: bytes, left_out: int, tmp_path: Path) -> None:
    tree = unpack(data, LIMITS)
    assert len(tree.left_out) == left_out
    place = PrivateTree(tmp_path / "place", Owner(uid=os.getuid(), gid=os.getgid()))
    place.make()
    place.restore(tree)
    back = place.collect(SandboxLimits())
    assert (back.files, back.symlinks, back.left_out) == (tree.files, tree.symlinks, ())


def test_hard_links_have_the_content_of_their_first_name() -> None:
    data = archived(entry("one"), entry("hard", tarfile.LNKTYPE, "one"), entry("pipe", tarfile.FIFOTYPE))
    tree = unpack(data, LIMITS)
    assert (sorted(tree.files), tree.special, tree.left_out) == (["hard", "one"], ("pipe",), ())


def test_a_hostile_tar_file_is_bounded() -> None:
    limits = SandboxLimits(collect_bytes=1000, collect_entries=10)
    many = WorkTree(files={f"f{n:02}": WorkFile(data=b"x" * 150) for n in range(20)})
    tree = unpack(pack(many), limits)
    assert len(tree.files) == 6 and len(tree.left_out) == 14
    bomb = gzip.compress(pack(WorkTree(files={"zeros": WorkFile(data=bytes(30 << 20))})), 1)
    tree = unpack_compressed(bomb, limits)
    assert tree.files == {} and tree.left_out[0] == "zeros"


def test_what_was_cut_off_by_us_is_missing_and_what_was_cut_off_on_its_way_is_a_fault() -> None:
    """Between two entries, too, where a tar file looks as if it had ended."""
    limits = SandboxLimits(collect_bytes=1 << 20, collect_entries=1)
    long = archived(*[entry(f"{number}/" + "d/" * 2000 + "f") for number in range(400)])
    cut = unpack(long[: most_bytes(limits)], SandboxLimits())
    assert 0 < len(cut.files) < 20, "folders that no entry names count as entries"
    assert with_status(cut, "141\n").left_out[-1] == THE_REST
    assert with_status(cut, "2").left_out[-1] == THE_REST
    assert with_status(cut, "1") == with_status(cut, "0\n") == cut
    assert unpack_compressed(gzip.compress(archived(entry("a")) + bytes(1 << 23)), limits).left_out[-1] == THE_REST
    with pytest.raises(SandboxError, match="only a part"):
        unpack_compressed(gzip.compress(pack(WorkTree(files={"a": WorkFile(data=os.urandom(5000))})))[:3000], limits)
    for nonsense in (b"nonsense", b""):
        with pytest.raises(SandboxError):
            unpack_compressed(nonsense, limits)
    with pytest.raises(SandboxError, match="no tar"):
        unpack(b"garbage" * 200, limits)
