"""A host folder that untrusted processes write to. Nothing here follows a symlink, or leaves the folder."""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import msgspec

from longrein.errors import SandboxError
from longrein.sandboxes.base import SandboxLimits, WorkFile, WorkTree

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MACHINE_ERRORS = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns the files inside."""

    uid: int
    gid: int


class PrivateTree:
    """One folder of a sandbox, seen from the host. Calls block; :meth:`collect` and :meth:`restore` may take long."""

    def __init__(self, path: Path, owner: Owner) -> None:
        self.path = path
        self._owner = owner
        self._ours = (owner.uid, owner.gid) == (os.getuid(), os.getgid())

    def make(self) -> None:
        """Create the folder itself, with its parents."""
        self.path.mkdir(parents=True)
        os.chown(self.path, self._owner.uid, self._owner.gid)

    def read(self, relative: str, limit_bytes: int) -> bytes:
        """Content of a regular file.

        Raises:
            FileNotFoundError: no such regular file, or a symlink on the way.
            SandboxError: it is larger than ``limit_bytes``.
        """
        *folders, name = _parts(relative)
        try:
            with self._folder(folders) as folder:
                return _read_at(folder, name, limit_bytes).data
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise SandboxError(f"{relative} holds more than {limit_bytes} bytes; it is not read") from error
            raise FileNotFoundError(f"{relative}: {error.strerror}; not a readable file of the sandbox") from error

    def write(self, relative: str, file: WorkFile) -> None:
        """Write a file, replacing what is there, and making its folders."""
        *folders, name = _parts(relative)
        with self._folder(folders, make=True) as folder:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            handle = os.open(name, _NEW, 0o755 if file.executable else 0o644, dir_fd=folder)
            with os.fdopen(handle, "wb") as opened:
                self._give(handle)
                opened.write(file.data)

    def collect(self, limits: SandboxLimits) -> WorkTree:
        """Everything in it up to the limits, in an order that only depends on the names."""
        walk = _Walk(limits)
        with self._folder([]) as root:
            walk.run(root)
        return WorkTree(
            files=walk.files,
            symlinks=walk.symlinks,
            folders=tuple(walk.folders),
            left_out=tuple(walk.left_out),
            special=tuple(walk.special),
        )

    def restore(self, tree: WorkTree) -> None:
        """Write a collected tree, replacing files and links that are there."""
        for relative in tree.folders:
            with self._folder(_parts(relative), make=True):
                pass
        for relative, file in tree.files.items():
            self.write(relative, file)
        for relative, target in tree.symlinks.items():
            *folders, name = _parts(relative)
            with self._folder(folders, make=True) as folder:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
                os.symlink(target, name, dir_fd=folder)
                os.chown(name, self._owner.uid, self._owner.gid, dir_fd=folder, follow_symlinks=False)

    @contextmanager
    def _folder(self, parts: list[str], make: bool = False) -> Generator[int]:
        handle = os.open(self.path, _FOLDER)
        try:
            for part in parts:
                if make:
                    self._make_folder(handle, part)
                below = os.open(part, _FOLDER, dir_fd=handle)
                os.close(handle)
                handle = below
            yield handle
        finally:
            os.close(handle)

    def _make_folder(self, parent: int, name: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
            os.chown(name, self._owner.uid, self._owner.gid, dir_fd=parent, follow_symlinks=False)

    def _give(self, handle: int) -> None:
        if not self._ours:
            os.fchown(handle, self._owner.uid, self._owner.gid)


def _read_at(folder: int, name: str, limit_bytes: int) -> WorkFile:
    handle = _open_unlocked(name, _FILE, folder)
    with os.fdopen(handle, "rb") as file:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file")
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise OSError(errno.EFBIG, "too large")
    return WorkFile(data=data, executable=bool(mode & 0o111))


def _parts(relative: str) -> list[str]:
    parts = list(PurePosixPath(relative).parts)
    if not parts or parts[0] == "/" or ".." in parts:
        raise SandboxError(f"path {relative!r} leaves the sandbox; give a path inside it")
    return parts


class _Walk:
    """One walk over a tree, without recursion: depth is the agent's to choose."""

    _MAX_DEPTH = 64
    _MAX_NAMED = 1000

    def __init__(self, limits: SandboxLimits) -> None:
        self.files: dict[str, WorkFile] = {}
        self.symlinks: dict[str, str] = {}
        self.folders: list[str] = []
        self.left_out: list[str] = []
        self.special: list[str] = []
        self._bytes_left = limits.collect_bytes
        self._entries_left = limits.collect_entries

    def run(self, root: int) -> None:
        """Walk everything below an open folder."""
        # What lies higher up comes first: it matters more where not all of it can be taken.
        waiting: deque[tuple[str, ...]] = deque([()])
        while waiting:
            parts = waiting.popleft()
            try:
                folder = _open_below(root, parts)
            except OSError as error:
                _raise_if_ours(error)
                self._name(self.left_out, "/".join(parts))
                continue
            try:
                names = sorted(os.listdir(folder))  # noqa: PTH208 - of an open folder, not of a path
                waiting += [(*parts, name) for name in names if self._take(folder, (*parts, name))]
            finally:
                os.close(folder)

    def _take(self, folder: int, parts: tuple[str, ...]) -> bool:
        """Record one entry; true for a folder to walk."""
        path, name = "/".join(parts), parts[-1]
        self._entries_left -= 1
        if self._entries_left < 0 or len(parts) > self._MAX_DEPTH or not _is_text(name):
            self._name(self.left_out, path)
            return False
        try:
            mode = os.lstat(name, dir_fd=folder).st_mode
            if stat.S_ISDIR(mode):
                self.folders.append(path)
                return True
            if stat.S_ISLNK(mode):
                self.symlinks[path] = os.readlink(name, dir_fd=folder)
                return False
            if not stat.S_ISREG(mode):
                self._name(self.special, path)
                return False
            file = _read_at(folder, name, self._bytes_left)
        except OSError as error:
            _raise_if_ours(error)
            self._name(self.left_out, path)
            return False
        self._bytes_left -= len(file.data)
        self.files[path] = file
        return False

    def _name(self, paths: list[str], path: str) -> None:
        if len(paths) < self._MAX_NAMED:
            paths.append(path.encode(errors="replace").decode())


def _is_text(name: str) -> bool:
    return not any("\udc80" <= character <= "\udcff" for character in name)


def _open_below(root: int, parts: tuple[str, ...]) -> int:
    handle = os.dup(root)
    for part in parts:
        try:
            below = _open_unlocked(part, _FOLDER, handle)
        finally:
            os.close(handle)
        handle = below
    return handle


def _open_unlocked(name: str, flags: int, folder: int) -> int:
    """Open an entry even where its owner, who may be we, took the right to: no work is lost to ``chmod 000``."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        entry = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            # Of what was opened, not of what the name may mean by now.
            mode = os.fstat(entry).st_mode
            os.chmod(f"/proc/self/fd/{entry}", stat.S_IMODE(mode) | (0o500 if stat.S_ISDIR(mode) else 0o400))  # noqa: PTH101
        finally:
            os.close(entry)
        return os.open(name, flags, dir_fd=folder)


def _raise_if_ours(error: OSError) -> None:
    """A machine in trouble is no fault of the agent's, and must not look like one."""
    if error.errno in _MACHINE_ERRORS:
        raise SandboxError(f"the work directory cannot be read: {error.strerror}; look at the machine") from error
