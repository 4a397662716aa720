"""A work directory as a compressed tar file in memory. Nothing of it ever touches our disk."""

from __future__ import annotations

import io
import tarfile
import zlib
from pathlib import PurePosixPath

from longrein.errors import SandboxError
from longrein.sandboxes.base import SandboxLimits, WorkFile, WorkTree

_MOST_NAMED = 1000


def pack(tree: WorkTree) -> bytes:
    """The tree as ``.tar.gz``, with folders, modes and symlinks."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=1) as archive:
        for path in tree.folders:
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for path, file in tree.files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(file.data), 0o755 if file.executable else 0o644
            archive.addfile(entry, io.BytesIO(file.data))
        for path, target in tree.symlinks.items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return made.getvalue()


def unpack(data: bytes, limits: SandboxLimits) -> WorkTree:
    """What a ``.tar.gz`` made by an untrusted sandbox holds, up to the limits; it may end in the middle.

    Raises:
        SandboxError: it is no such file.
    """
    unpacking = _Unpacking(limits)
    try:
        # Bounded: a few bytes can stand for terabytes.
        plain = zlib.decompressobj(wbits=31).decompress(data, most_bytes(limits))
    except zlib.error as error:
        raise SandboxError(f"the sandbox sent no work directory: {error}") from error
    try:
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:", errorlevel=0) as archive:
            for entry in archive:
                unpacking.take(archive, entry)
    except (tarfile.TarError, EOFError, OSError, ValueError):
        # ValueError: numbers that are none in the headers of sparse files.
        unpacking.left_out.append("(the rest)")
    return unpacking.tree()


def most_bytes(limits: SandboxLimits) -> int:
    """Size of the largest tar file that is looked at: the files, and the headers of all entries."""
    return limits.collect_bytes + limits.collect_entries * 2048 + (1 << 20)


class _Unpacking:
    """Entries so far."""

    def __init__(self, limits: SandboxLimits) -> None:
        self.left_out: list[str] = []
        self._files: dict[str, WorkFile] = {}
        self._symlinks: dict[str, str] = {}
        self._folders: list[str] = []
        self._special: list[str] = []
        self._left_bytes = limits.collect_bytes
        self._left_entries = limits.collect_entries

    def take(self, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        """Record one entry."""
        name = PurePosixPath(entry.name)
        path = str(name)
        if path == ".":
            return
        self._left_entries -= 1
        if self._left_entries < 0 or ".." in name.parts or name.is_absolute() or not _is_text(path):
            self.left_out.append(path.encode(errors="replace").decode())
        elif entry.isdir():
            self._folders.append(path)
        elif entry.issym():
            self._symlinks[path] = entry.linkname
        else:
            self._take_file(archive, entry, path)

    def _take_file(self, archive: tarfile.TarFile, entry: tarfile.TarInfo, path: str) -> None:
        same = self._files.get(str(PurePosixPath(entry.linkname))) if entry.islnk() else None
        if same is not None:
            self._files[path] = same
        elif not entry.isreg():
            self._special.append(path)
        elif entry.size > self._left_bytes:
            self.left_out.append(path)
        else:
            content = archive.extractfile(entry)
            data = content.read() if content is not None else b""
            self._left_bytes -= len(data)
            self._files[path] = WorkFile(data=data, executable=bool(entry.mode & 0o111))

    def tree(self) -> WorkTree:
        """All of it."""
        return WorkTree(
            files=dict(sorted(self._files.items())),
            symlinks=dict(sorted(self._symlinks.items())),
            folders=tuple(sorted(self._folders)),
            left_out=tuple(self.left_out[:_MOST_NAMED]),
            special=tuple(sorted(self._special)[:_MOST_NAMED]),
        )


def _is_text(name: str) -> bool:
    return not any("\udc80" <= character <= "\udcff" for character in name)
