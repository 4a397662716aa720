"""A work directory as a tar file in memory. Nothing of it ever touches our disk.

Archives come from sandboxes whose programs an agent may have replaced: what is read here may have been made to harm.
"""

from __future__ import annotations

import io
import tarfile
import zlib
from pathlib import PurePosixPath

from msgspec.structs import replace

from longrein.errors import SandboxError
from longrein.sandboxes.base import SandboxLimits, WorkFile, WorkTree

_MOST_NAMED = 1000
_LONGEST_NAME_BYTES = 255
_LONGEST_TARGET_BYTES = 4095
_WHOLE = ("0", "1")
"""What tar exits with where all is in the archive; 1: something changed while it was read."""
THE_REST = "(the rest)"

_BROKEN = (tarfile.TarError, EOFError, OSError, ArithmeticError, LookupError, ValueError, MemoryError, RecursionError)
"""What the library raises over a broken archive."""


def pack(tree: WorkTree) -> bytes:
    """The tree as ``.tar``, with folders, modes and symlinks."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
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


def packing_script(folder: str, status: str, limits: SandboxLimits) -> str:
    """A shell command that writes a folder's archive to standard output, cut off where :func:`unpack` reads no more.

    Args:
        folder: quoted for a shell.
        status: path of a file, quoted, that gets what tar exited with; see :func:`with_status`.
        limits: on what is collected.
    """
    # Locked files would be left out silently.
    packed = f"(tar -C {folder} -cf - . 2>/dev/null; echo $? > {status})"
    return f"chmod -R u+rX {folder}; {packed} | head -c {most_bytes(limits)}"


def with_status(tree: WorkTree, status: str) -> WorkTree:
    """The tree, which says that something is missing where tar said so."""
    if status.strip() in _WHOLE:
        return tree
    return replace(tree, left_out=(*tree.left_out, THE_REST))


def unpack_compressed(data: bytes, limits: SandboxLimits) -> WorkTree:
    """The same as :func:`unpack`, of a ``.tar.gz``.

    Raises:
        SandboxError: it is no such file, or only the beginning of one.
    """
    stream = zlib.decompressobj(wbits=31)
    try:
        # Bounded: a few bytes can stand for terabytes.
        plain = stream.decompress(data, most_bytes(limits))
    except zlib.error as error:
        raise SandboxError(f"the sandbox sent no work directory: {error}") from error
    if not stream.eof and not stream.unconsumed_tail and len(plain) < most_bytes(limits):
        raise SandboxError(f"the sandbox sent only a part of its work directory ({len(data)} bytes)")
    tree = unpack(plain, limits)
    return tree if stream.eof else replace(tree, left_out=(*tree.left_out, THE_REST))


def unpack(data: bytes, limits: SandboxLimits) -> WorkTree:
    """What a ``.tar`` made by an untrusted sandbox holds, up to the limits; it may end in the middle.

    No two paths of the result are at odds: it can be restored as it is.

    Raises:
        SandboxError: it is no such file.
    """
    unpacking = _Unpacking(limits)
    try:
        archive = tarfile.open(fileobj=io.BytesIO(data), mode="r:", errorlevel=0)  # noqa: SIM115 - of memory
    except _BROKEN as error:
        raise SandboxError(f"what the sandbox sent is no tar archive: {error}") from error
    try:
        for entry in archive:
            if not unpacking.take(archive, entry):
                break
    except _BROKEN:
        unpacking.left_out.append(THE_REST)
    return unpacking.tree()


def most_bytes(limits: SandboxLimits) -> int:
    """Size of the largest tar file that is looked at: the files, and the headers of all entries."""
    return limits.collect_bytes + limits.collect_entries * 2048 + (1 << 20)


class _Folder:
    """What is there so far: folders, and ``None`` for what is none."""

    def __init__(self) -> None:
        self.entries: dict[str, _Folder | None] = {}


class _Unpacking:
    """Entries so far."""

    def __init__(self, limits: SandboxLimits) -> None:
        self.left_out: list[str] = []
        self._files: dict[str, WorkFile] = {}
        self._symlinks: dict[str, str] = {}
        self._folders: list[str] = []
        self._special: list[str] = []
        self._root = _Folder()
        self._left_bytes = limits.collect_bytes
        self._left_entries = limits.collect_entries

    def take(self, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bool:
        """Record one entry; false when no more need to be looked at: some archives have no end."""
        path = str(PurePosixPath(entry.name))
        if path == ".":
            return True
        self._left_entries -= 1
        if self._left_entries < 0 or not _is_path(path) or not self._fits(path, entry.isdir()):
            self._leave_out(path)
        elif entry.isdir():
            self._place(path, is_folder=True)
            self._folders.append(path)
        elif entry.issym():
            self._take_link(path, entry.linkname)
        else:
            self._take_file(archive, entry, path)
        return self._left_entries > -_MOST_NAMED

    def _take_link(self, path: str, target: str) -> None:
        if not target or "\0" in target or len(target.encode(errors="surrogateescape")) > _LONGEST_TARGET_BYTES:
            self._leave_out(path)
            return
        self._place(path)
        self._symlinks[path] = target

    def _take_file(self, archive: tarfile.TarFile, entry: tarfile.TarInfo, path: str) -> None:
        same = self._files.get(str(PurePosixPath(entry.linkname))) if entry.islnk() else None
        if same is not None:
            self._place(path)
            self._files[path] = same
        elif entry.islnk():
            self._leave_out(path)
        elif not entry.isreg():
            self._special.append(path)
        elif not 0 <= entry.size <= self._left_bytes:
            self._leave_out(path)
        else:
            content = archive.extractfile(entry)
            data = content.read() if content is not None else b""
            self._left_bytes -= len(data)
            self._place(path)
            self._files[path] = WorkFile(data=data, executable=bool(entry.mode & 0o111))

    def _fits(self, path: str, is_folder: bool) -> bool:
        """Nothing else is there, and what is above it are folders."""
        *above, name = PurePosixPath(path).parts
        folder = self._root
        for part in above:
            if part not in folder.entries:
                return True
            found = folder.entries[part]
            if found is None:
                return False
            folder = found
        return name not in folder.entries or (is_folder and folder.entries[name] is not None)

    def _place(self, path: str, is_folder: bool = False) -> None:
        """Folders that the archive does not name count as entries, too: a path may lead through thousands."""
        *above, name = PurePosixPath(path).parts
        folder = self._root
        for part in above:
            found = folder.entries.get(part)
            if found is None:
                found = folder.entries[part] = _Folder()
                self._left_entries -= 1
            folder = found
        if not is_folder:
            folder.entries[name] = None
        elif name not in folder.entries:
            folder.entries[name] = _Folder()

    def _leave_out(self, path: str) -> None:
        self.left_out.append(path.encode(errors="replace").decode())

    def tree(self) -> WorkTree:
        """All of it."""
        return WorkTree(
            files=dict(sorted(self._files.items())),
            symlinks=dict(sorted(self._symlinks.items())),
            folders=tuple(sorted({*self._folders})),
            left_out=tuple(self.left_out[:_MOST_NAMED]),
            special=tuple(sorted(self._special)[:_MOST_NAMED]),
        )


def _is_path(path: str) -> bool:
    """One that a file of a work directory may have."""
    name = PurePosixPath(path)
    try:
        sizes = [len(part.encode()) for part in name.parts]
    except UnicodeEncodeError:
        return False
    return not name.is_absolute() and ".." not in name.parts and "\0" not in path and max(sizes) <= _LONGEST_NAME_BYTES
