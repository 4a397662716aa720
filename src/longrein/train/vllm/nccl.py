"""The trainer's end of vLLM's NCCL backend, by torch alone: vLLM need not be installed beside the trainer.

Written against vLLM 0.32.0 (``NCCLWeightTransferInitInfo`` with ``nccl_unique_id_b64``, whose peers all reduce one
element after they joined; ``NCCLWeightTransferEngine``, not packed: one broadcast a tensor, from rank 0). It needs a
GPU on both ends and was **not run** by this project's checks, which have none; ``bench/vllm_gpu.sh`` runs it.
"""

# torch.cuda.nccl is untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.cuda import nccl

from longrein.errors import ConfigError, EngineError


class NcclLink:
    """A :class:`~longrein.train.vllm.transfer.TransferLink` over NVLink, InfiniBand or whatever NCCL finds.

    Raises:
        ConfigError: no GPU here.
    """

    backend = "nccl"

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise ConfigError("weight_sync='nccl' needs a GPU in the trainer's process; use 'folder' without one")
        self._id: bytes = nccl.unique_id()
        self._communicator: Any = None

    def offer(self, rank_offset: int, world_size: int) -> Mapping[str, Any]:
        """See :class:`~longrein.train.vllm.transfer.TransferLink`."""
        return {
            "nccl_unique_id_b64": base64.b64encode(self._id).decode(),
            "rank_offset": rank_offset,
            "world_size": world_size,
            "packed": False,
        }

    def join(self, world_size: int) -> None:
        """See :class:`~longrein.train.vllm.transfer.TransferLink`."""
        try:
            self._communicator = nccl.init_rank(world_size, self._id, 0)
            nccl.all_reduce([torch.zeros(1, device="cuda")], comms=[self._communicator])
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise EngineError(f"the servers cannot be joined by NCCL: {error}; see their logs") from error

    def send(self, tensors: Mapping[str, Tensor]) -> None:
        """See :class:`~longrein.train.vllm.transfer.TransferLink`."""
        try:
            for tensor in tensors.values():
                there = tensor.detach().to("cuda").contiguous()
                nccl.broadcast([there], root=0, comms=[self._communicator])
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise EngineError(f"weights cannot be sent by NCCL: {error}; see the servers' logs") from error

    def close(self) -> None:
        """Another join has another id."""
        self._communicator = None
        self._id = nccl.unique_id()
