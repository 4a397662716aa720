"""From settings to the receiver that brings weights to vLLM servers."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol, get_args

import msgspec

from longrein.engines.base import WeightReceiver
from longrein.engines.vllm.control import ControlTimeouts, PauseMode, ServerControl
from longrein.engines.vllm.requirements import require_adapters, require_transfer, require_updates
from longrein.engines.vllm.updates import WeightUpdates
from longrein.engines.vllm.urls import is_here
from longrein.errors import ConfigError, EngineError, EngineUnreachableError
from longrein.train.vllm.delta import DeltaWeights
from longrein.train.vllm.folder import FolderWeights
from longrein.train.vllm.lora import AdapterWeights
from longrein.train.vllm.nccl import NcclLink
from longrein.train.vllm.tied import Tied
from longrein.train.vllm.transfer import TransferWeights

WeightSync = Literal["folder", "delta", "lora", "nccl"]
RETRY_S = 1.0


class SyncSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How weights come to the servers.

    Raises:
        ConfigError: an unknown way, or a folder that servers elsewhere cannot see.
    """

    urls: tuple[str, ...]
    """As :func:`~longrein.engines.vllm.urls.server_urls` gives them."""
    weight_sync: WeightSync = "folder"
    weights_folder: str = ""
    """Where weights are written; servers on this machine, or with the same disk, read them there."""
    pause: PauseMode = "keep"
    update_timeout_s: float = 300.0
    """One update of one server."""
    outage_timeout_s: float = 300.0
    """How long a server that does not answer is waited for."""

    def __post_init__(self) -> None:
        if self.weight_sync not in get_args(WeightSync):
            raise ConfigError(f"weight_sync={self.weight_sync!r}; choose one of {', '.join(get_args(WeightSync))}")
        if self.pause not in get_args(PauseMode):
            raise ConfigError(f"pause={self.pause!r}; choose one of {', '.join(get_args(PauseMode))}")
        if self.weight_sync != "nccl" and not self.weights_folder:
            raise ConfigError(f"weight_sync={self.weight_sync!r} needs weights_folder, where weights are written")


class VllmReceiver(WeightReceiver, Protocol):
    """A receiver with threads and connections of its own."""

    def close(self) -> None:
        """Let go of the servers; they live on."""
        ...


def weights_folder(given: str, output_dir: str, urls: tuple[str, ...]) -> str:
    """A folder of this run's own in the one that was given, or in the run directory if all servers are on this machine.

    Of its own, since what is in it is removed again: ``/dev/shm`` has other things in it, and other runs.

    Raises:
        ConfigError: a server elsewhere, and no folder was given.
    """
    elsewhere = [url for url in urls if not is_here(url)]
    if not given and elsewhere:
        raise ConfigError(
            f"{elsewhere[0]} is not on this machine; give a weights folder that it sees under the same path, or "
            "weight_sync='nccl'"
        )
    run = Path(output_dir).resolve()
    if not given:
        return str(run / "engine-weights")
    # Two machines may have the same path for runs of their own, and see one weights folder.
    digest = hashlib.blake2b(f"{platform.node()} {run}".encode(), digest_size=4).hexdigest()
    return str(Path(given).resolve() / f"longrein-{run.name}-{digest}")


def vllm_receiver(settings: SyncSettings, tied: Tied) -> VllmReceiver:
    """Wait for the servers, see that they can take weights this way, and return what brings them.

    Args:
        settings: which servers, and how.
        tied: of the model in training, see :mod:`longrein.train.vllm.tied`.

    Raises:
        EngineError: one does not answer in time, or lacks what it needs; the message names the flag.
    """
    timeouts = ControlTimeouts(update_s=settings.update_timeout_s)
    servers = [ServerControl(url, timeouts) for url in settings.urls]
    make, require = WAYS[settings.weight_sync]
    try:
        deadline_s = time.monotonic() + settings.outage_timeout_s
        for server in servers:
            _wait_for(server, deadline_s)
            require(server)
    except BaseException:
        for server in servers:
            server.close()
        raise
    updates = WeightUpdates(servers, pause=settings.pause, outage_timeout_s=settings.outage_timeout_s)
    return make(updates, settings, tied)


def _wait_for(server: ServerControl, deadline_s: float) -> None:
    while True:
        try:
            server.healthy()
        except EngineUnreachableError as error:
            if time.monotonic() > deadline_s:
                raise EngineError(f"{error}; start it, or correct the URL") from error
            time.sleep(RETRY_S)
        else:
            return


def _by_folder(updates: WeightUpdates, settings: SyncSettings, tied: Tied) -> VllmReceiver:
    return FolderWeights(updates, Path(settings.weights_folder), tied)


def _by_delta(updates: WeightUpdates, settings: SyncSettings, tied: Tied) -> VllmReceiver:
    return DeltaWeights(updates, Path(settings.weights_folder), tied)


def _by_adapter(updates: WeightUpdates, settings: SyncSettings, tied: Tied) -> VllmReceiver:
    return AdapterWeights(updates, Path(settings.weights_folder), tied)


def _by_nccl(updates: WeightUpdates, settings: SyncSettings, tied: Tied) -> VllmReceiver:
    return TransferWeights(updates, NcclLink(), tied, settings.update_timeout_s)


def _require_nccl(server: ServerControl) -> None:
    require_transfer(server, NcclLink.backend)


Make = Callable[[WeightUpdates, SyncSettings, Tied], VllmReceiver]
WAYS: Mapping[str, tuple[Make, Callable[[ServerControl], None]]] = MappingProxyType(
    {
        "folder": (_by_folder, require_updates),
        "delta": (_by_delta, require_updates),
        "lora": (_by_adapter, require_adapters),
        "nccl": (_by_nccl, _require_nccl),
    }
)
"""Of each way: what makes its receiver, and what a server must have."""
