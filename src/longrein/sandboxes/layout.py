"""Where the folders of one sandbox lie on the host, and what they are called inside."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

import msgspec

from longrein.errors import SandboxError
from longrein.sandboxes.tree import Owner, PrivateTree


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where an inside path lies on the host."""

    tree: PrivateTree
    path: str
    """Relative to the tree."""


class Layout:
    """Inside path -> private host folder. The session's folder as a whole is ours alone."""

    def __init__(self, session: Path, workdir: str, trees: dict[str, PrivateTree]) -> None:
        self.session = session
        self.workdir = workdir
        self.trees = trees

    @classmethod
    def make(cls, session: Path, workdir: str, inside: tuple[str, ...], owner: Owner) -> Layout:
        """Create one host folder for each inside path, below ``session``, which must exist.

        Raises:
            SandboxError: a path that cannot be a private folder.
        """
        names = dict.fromkeys(map(private_path, inside))
        trees = {path: PrivateTree(session / f"folder-{index}", owner) for index, path in enumerate(names)}
        for tree in trees.values():
            tree.make()
        return cls(session, workdir, trees)

    @classmethod
    def at(cls, session: Path, workdir: str, folders: tuple[str, ...], owner: Owner) -> Layout:
        """The same for a sandbox whose inside paths are the host's own."""
        trees = {path: PrivateTree(Path(path), owner) for path in map(private_path, folders)}
        for tree in trees.values():
            tree.make()
        return cls(session, workdir, trees)

    def locate(self, path: str) -> Place:
        """The folder that holds an inside path, and the path within it.

        Raises:
            SandboxError: it lies in no private folder.
        """
        wanted = PurePosixPath(self.workdir) / path
        homes = [PurePosixPath(folder) for folder in self.trees if wanted.is_relative_to(folder)]
        if not homes:
            raise SandboxError(f"{path!r} lies in no private folder of the sandbox ({', '.join(self.trees)})")
        folder = max(homes, key=lambda home: len(home.parts))
        return Place(tree=self.trees[str(folder)], path=str(wanted.relative_to(folder)))

    @property
    def work(self) -> PrivateTree:
        """The work directory."""
        return self.trees[self.workdir]


def private_path(folder: str) -> str:
    """Spelled in one way: what lies in ``/app/`` lies in ``/app``.

    Raises:
        SandboxError: a path that cannot be a private folder.
    """
    path = PurePosixPath(folder)
    if not path.is_absolute() or len(path.parts) == 1 or ".." in path.parts:
        raise SandboxError(f"{folder!r} cannot be a private folder; give an absolute path below /")
    return str(path)


def remove_tree(path: Path) -> None:
    """Remove a folder whatever is in it: folders without permissions, folders deeper than any path is long.

    Raises:
        SandboxError: something is left.
    """
    # The system's rm: Python's shutil.rmtree recurses, and depth is the agent's to choose.
    for command in (("rm", "-rf", "--"), ("chmod", "-R", "u+rwx", "--"), ("rm", "-rf", "--")):
        if not path.exists():
            return
        subprocess.run([*command, str(path)], stderr=subprocess.DEVNULL, check=False)
    if path.exists():
        raise SandboxError(f"{path} could not be removed; remove it by hand")
