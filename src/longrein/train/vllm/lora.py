"""Adapters alone: a few megabytes a step, beside a base that was sent once."""

# safetensors is partly untyped.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from longrein.engines.base import AdapterSpec
from longrein.engines.vllm.control import ServerControl
from longrein.engines.vllm.requirements import require_rank
from longrein.engines.vllm.updates import WeightUpdates
from longrein.errors import EngineError
from longrein.train.vllm.folder import FolderWeights, WeightFolder, drop_others, part_of, write_tensors
from longrein.train.vllm.shapes import as_tensors
from longrein.train.vllm.tied import Tied

TENSORS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."


class AdapterFolder:
    """An adapter in PEFT's format, and what it is added to; :class:`~longrein.engines.vllm.updates.Weights`.

    A server reads it under a name of its own that never changes, a link that is turned to the newest version while that
    server is paused. vLLM 0.32 reads an adapter that was loaded in place again and again, by the path that was the
    present one when a request came: by another path a request in flight would bring the old adapter back, and a path
    that is gone ends the engine.
    """

    def __init__(self, folder: Path, base: WeightFolder) -> None:
        self.folder = folder
        self._base = base

    def refuse_gone(self, server: ServerControl) -> None:
        """They stay on disk."""

    def change(self, server: ServerControl) -> None:
        """The adapter alone."""
        link = self.folder.with_name(_link_name(server.url))
        turned = part_of(link)
        try:
            turned.unlink(missing_ok=True)
            turned.symlink_to(self.folder.name)
            turned.replace(link)
        except OSError as error:
            raise EngineError(f"{link} cannot be made: {error}; give a folder on a disk with room and links") from error
        server.load_adapter(str(link))

    def whole(self, server: ServerControl) -> None:
        """The base first."""
        self._base.whole(server)
        self.change(server)


class AdapterWeights(FolderWeights):
    """An :class:`~longrein.engines.base.AdapterReceiver`.

    Completions are sampled with the adapter from :meth:`update_adapter` on, by clients that connect after it; with the
    base alone after :meth:`update`.
    """

    def __init__(self, updates: WeightUpdates, folder: Path, tied: Tied) -> None:
        super().__init__(updates, folder, tied)
        self._largest_rank = 0
        self._base: Path | None = None
        self._adapter: Path | None = None

    def update(self, tensors: object, policy_version: int) -> None:
        """See :class:`~longrein.engines.base.WeightReceiver`. An adapter that the servers have is gone."""
        super().update(tensors, policy_version)
        self._base = self._folder / f"v{policy_version}"

    def update_adapter(self, tensors: object, spec: AdapterSpec, policy_version: int) -> None:
        """See :class:`~longrein.engines.base.AdapterReceiver`.

        Raises:
            EngineError: also for a rank above a server's ``--max-lora-rank``, and for an adapter without a base.
        """
        self._updates.refuse_old(policy_version)
        if self._base is None:
            raise EngineError("an adapter came before the weights that it is added to; call update() first")
        rank = max(target.rank for target in spec.targets.values())
        if rank > self._largest_rank:
            for server in self._updates.servers:
                require_rank(server, rank)
            self._largest_rank = rank
        folder = write_adapter(as_tensors(tensors), spec, self._folder / f"a{policy_version}")
        self._updates.publish(AdapterFolder(folder, WeightFolder(self._base)), policy_version)
        self._adapter = folder
        drop_others(self._folder, self._base, folder)

    def close(self) -> None:
        """No server knows the adapter any more, since it would read it again from where nothing is."""
        # Else a server that was started again might get it back behind us.
        self._updates.rest()
        for server in self._updates.servers:
            with contextlib.suppress(EngineError):
                server.healthy()
                server.unload_adapter()
        super().close()

    def _in_use(self) -> tuple[Path, ...]:
        return () if self._adapter is None else (self._adapter,)


def _link_name(url: str) -> str:
    return "adapter-" + re.sub(r"[^A-Za-z0-9]+", "-", url)


def write_adapter(tensors: Mapping[str, Tensor], spec: AdapterSpec, folder: Path) -> Path:
    """Write an adapter as PEFT would, but of one rank and scaling 1.

    vLLM reads one rank and one scaling for all targets: each scaling is multiplied into its ``B``, and smaller ranks
    are filled up with zeros. ``B @ A`` stays the same.
    """
    rank = max(target.rank for target in spec.targets.values())
    written: dict[str, Tensor] = {}
    for module, target in spec.targets.items():
        a, b = tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"]
        spare = rank - target.rank
        written[f"{_PREFIX}{module}.lora_A.weight"] = torch.nn.functional.pad(a.detach(), (0, 0, 0, spare))
        written[f"{_PREFIX}{module}.lora_B.weight"] = torch.nn.functional.pad(b.detach() * target.scaling, (0, spare))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "bias": "none",
        "target_modules": sorted({module.rpartition(".")[2] for module in spec.targets}),
    }
    return write_tensors(written, folder, TENSORS, {CONFIG: json.dumps(config)})
