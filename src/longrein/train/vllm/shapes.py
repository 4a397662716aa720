"""Whether tensors are those of the served model: a server keeps a weight that it does not get, and says nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from torch import Tensor

from longrein.engines.vllm.control import ServerControl
from longrein.errors import EngineError, EngineUnreachableError

_MAX_NAMES_SHOWN = 3
Shapes = dict[str, tuple[int, ...]]


def shapes_of(tensors: Mapping[str, Tensor]) -> Shapes:
    """Name -> shape."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def folder_shapes(folder: Path) -> Shapes:
    """Those of a folder's safetensors files, from their headers; empty for a folder that has none, or none to be read.

    A file begins with the length of its header (8 bytes, little-endian) and the header as JSON:
    https://huggingface.co/docs/safetensors
    """
    found: Shapes = {}
    try:
        for file in sorted(folder.glob("*.safetensors")) if folder.is_dir() else []:
            with file.open("rb") as stream:
                size = int.from_bytes(stream.read(8), "little")
                if size > file.stat().st_size:
                    return {}
                header = msgspec.json.decode(stream.read(size), type=dict[str, Any])
            found |= {name: tuple(told["shape"]) for name, told in header.items() if name != "__metadata__"}
    except (OSError, msgspec.DecodeError):
        # A path that means something else on the server's machine.
        return {}
    return found


def refuse_other_shapes(tensors: Mapping[str, Tensor], known: Shapes, where: str) -> None:
    """Raise :class:`EngineError` where names or shapes are not those of ``known``.

    A head tied to the embeddings may be there under its own name, or not.
    """
    given = shapes_of(tensors)
    tied = {name for name in known.keys() ^ given.keys() if name.endswith("lm_head.weight")}
    unknown, missing = given.keys() - known.keys() - tied, known.keys() - given.keys() - tied
    other = {name for name in given.keys() & known.keys() if given[name] != known[name]}
    for what, names in (("unknown", unknown), ("missing", missing), ("of another shape", other)):
        if names:
            ordered = sorted(names)
            more = f" and {len(ordered) - _MAX_NAMES_SHOWN} more" if len(ordered) > _MAX_NAMES_SHOWN else ""
            shown = ", ".join(ordered[:_MAX_NAMES_SHOWN]) + more
            raise EngineError(
                f"these weights are not of the model that {where} serves: {what} {shown}; train the model that it was "
                "started with"
            )


def check_served(tensors: Mapping[str, Tensor], known: Shapes, servers: Sequence[ServerControl]) -> None:
    """Raise :class:`EngineError` where tensors are not those of the served model.

    Args:
        tensors: to be published.
        known: what was published before; empty the first time, when the folders that the servers were started with are
            looked at, where they are on this machine.
        servers: the servers.
    """
    if known:
        refuse_other_shapes(tensors, known, "the fleet")
        return
    for server in servers:
        folder = folder_shapes(Path(_root(server)))
        if folder:
            refuse_other_shapes(tensors, folder, server.url)


def _root(server: ServerControl) -> str:
    try:
        return server.served().root
    except EngineUnreachableError:
        # Whether it comes back is for the update to find out.
        return ""


def as_tensors(tensors: object) -> Mapping[str, Tensor]:
    """What a weight receiver is given."""
    return cast("Mapping[str, Tensor]", tensors)
