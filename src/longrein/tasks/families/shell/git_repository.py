"""A git repository as files, made without git: the same commits for the same content.

Format: gitformat-pack's loose objects and gitformat-index, version 2 (git's own documentation).
"""

from __future__ import annotations

import hashlib
import struct
import zlib

import msgspec

Tree = dict[str, str]
"""Path (of one folder: no ``/``) -> content."""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One commit of a line of them."""

    message: str
    tree: Tree


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in the work directory, and the commits' ids."""

    files: dict[str, str | bytes]
    commits: tuple[str, ...]


def repository(commits: list[Commit], branches: dict[str, int]) -> Repository:
    """A repository with a line of commits, branches at some of them, and ``main`` checked out at the last."""
    objects: dict[str, bytes] = {}
    ids: list[str] = []
    for number, commit in enumerate(commits):
        tree = _tree(objects, commit.tree)
        parent = f"parent {ids[-1]}\n" if ids else ""
        who = f"Ann Author <ann@example.com> {1700000000 + 3600 * number} +0000"
        text = f"tree {tree}\n{parent}author {who}\ncommitter {who}\n\n{commit.message}\n"
        ids.append(_object(objects, "commit", text.encode()))
    checked_out = commits[-1].tree
    files: dict[str, str | bytes] = {
        **checked_out,
        ".git/HEAD": "ref: refs/heads/main\n",
        ".git/config": "[core]\n\trepositoryformatversion = 0\n\tfilemode = false\n\tbare = false\n",
        ".git/index": _index(objects, checked_out),
        ".git/refs/heads/main": f"{ids[-1]}\n",
        **{f".git/refs/heads/{name}": f"{ids[number]}\n" for name, number in branches.items()},
        **{f".git/objects/{key[:2]}/{key[2:]}": data for key, data in objects.items()},
    }
    return Repository(files=files, commits=tuple(ids))


def _object(objects: dict[str, bytes], kind: str, body: bytes) -> str:
    whole = f"{kind} {len(body)}\0".encode() + body
    key = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
    objects[key] = zlib.compress(whole)
    return key


def _tree(objects: dict[str, bytes], tree: Tree) -> str:
    entries = [
        f"100644 {name}\0".encode() + bytes.fromhex(_object(objects, "blob", text.encode()))
        for name, text in sorted(tree.items())
    ]
    return _object(objects, "tree", b"".join(entries))


def _index(objects: dict[str, bytes], tree: Tree) -> bytes:
    entries = b""
    for name, text in sorted(tree.items()):
        key = bytes.fromhex(_object(objects, "blob", text.encode()))
        # No times, so git looks at the content.
        entry = struct.pack(">6I", 0, 0, 0, 0, 0, 0) + struct.pack(">4I", 0o100644, 0, 0, len(text.encode()))
        entry += key + struct.pack(">H", len(name)) + name.encode()
        entries += entry + b"\0" * (8 - len(entry) % 8)
    whole = b"DIRC" + struct.pack(">2I", 2, len(tree)) + entries
    return whole + hashlib.sha1(whole, usedforsecurity=False).digest()
