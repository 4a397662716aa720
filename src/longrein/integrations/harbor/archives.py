"""Trees of files as tar archives: how folders travel into an environment and back."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from longrein.errors import SandboxError
from longrein.sandboxes.base import SandboxLimits, WorkFile, WorkTree

_NAMED = 1000
_FOLDER_MODE = 0o755
_MODES = {False: 0o644, True: 0o755}


def pack_folder(folder: Path, without: Collection[str] = ()) -> bytes:
    """A host folder's content but for entries ``without``. Symlinks stay symlinks; owners and times are left out."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(path for path in folder.rglob("*") if path.relative_to(folder).as_posix() not in without):
            archive.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=_anonymous)
    return buffer.getvalue()


def unpack_folder(data: bytes, folder: Path) -> None:
    """Write an archive from an environment into a host folder. What could leave it, or is a device, is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    with _opened(data) as archive:
        for member in archive:
            if member.isdev():
                continue
            try:
                archive.extract(member, folder, filter="data")
            except tarfile.FilterError:
                continue


def pack_tree(tree: WorkTree) -> bytes:
    """A collected tree, to be put into another environment."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in tree.folders:
            member = tarfile.TarInfo(path)
            member.type, member.mode = tarfile.DIRTYPE, _FOLDER_MODE
            archive.addfile(member)
        for path, file in tree.files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(file.data), _MODES[file.executable]
            archive.addfile(member, io.BytesIO(file.data))
        for path, target in tree.symlinks.items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return buffer.getvalue()


def unpack_tree(data: bytes, limits: SandboxLimits) -> WorkTree:
    """An archive made in an environment, as :meth:`~longrein.sandboxes.base.Sandbox.collect` returns it.

    Raises:
        SandboxError: it is no archive.
    """
    collected = _Collected(limits)
    with _opened(data) as archive:
        for member in archive:
            collected.add(archive, member)
    return collected.tree()


class _Collected:
    def __init__(self, limits: SandboxLimits) -> None:
        self._limits = limits
        self._files: dict[str, WorkFile] = {}
        self._symlinks: dict[str, str] = {}
        self._folders: list[str] = []
        self._left_out: list[str] = []
        self._special: list[str] = []
        self._entries = 0
        self._bytes = 0

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = _inside(member.name)
        if path is None:
            return
        self._entries += 1
        if self._entries > self._limits.collect_entries or not _is_text(path):
            self._left_out.append(path.encode(errors="replace").decode())
        elif member.isdir():
            self._folders.append(path)
        elif member.issym():
            self._symlinks[path] = member.linkname
        elif member.isfile() or member.islnk():
            self._add_file(archive, member, path)
        else:
            self._special.append(path)

    def _add_file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        # A hard link is read through the member that holds its content.
        content = archive.extractfile(member)
        data = content.read() if content is not None else b""
        self._bytes += len(data)
        if self._bytes > self._limits.collect_bytes:
            self._left_out.append(path)
        else:
            self._files[path] = WorkFile(data=data, executable=bool(member.mode & 0o100))

    def tree(self) -> WorkTree:
        return WorkTree(
            files=self._files,
            symlinks=self._symlinks,
            folders=tuple(self._folders),
            left_out=tuple(self._left_out[:_NAMED]),
            special=tuple(self._special[:_NAMED]),
        )


def _opened(data: bytes) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=io.BytesIO(data), mode="r:")
    except tarfile.TarError as error:
        raise SandboxError(f"what the environment sent is no tar archive: {error}") from error


def _inside(name: str) -> str | None:
    """The path below the folder that was packed; nothing for the folder itself, or for what would leave it."""
    parts = PurePosixPath(name).parts
    if not parts or parts[0] == "/" or ".." in parts:
        return None
    return str(PurePosixPath(*parts))


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member
