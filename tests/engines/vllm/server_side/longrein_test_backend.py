"""Runs inside the vLLM server: a backend of its weight-transfer API that needs no GPU, and a pace for its steps.

Named by ``--worker-extension-cls``, which imports this file and so registers the backend. Like NCCL's, it receives
while the trainer sends, tensor by tensor, in order; but over a socket.
"""

import socket
import time
from dataclasses import dataclass

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


@dataclass
class SocketInit(WeightTransferInitInfo):
    port: int
    rank_offset: int
    world_size: int


@dataclass
class SocketUpdate(WeightTransferUpdateInfo):
    names: list
    dtype_names: list
    shapes: list


class SocketEngine(WeightTransferEngine):
    init_info_cls = SocketInit
    update_info_cls = SocketUpdate

    def init_transfer_engine(self, init_info):
        self.stream = socket.create_connection(("127.0.0.1", init_info.port), timeout=30)
        self.stream.sendall(bytes([init_info.rank_offset, init_info.world_size]))

    def start_weight_update(self):
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self):
        finalize_layerwise_reload(self.model, self.model_config)

    def receive_weights(self, update_info):
        for name, dtype, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            left = memoryview(tensor.view(torch.uint8).numpy()).cast("B")
            while left:
                left = left[self.stream.recv_into(left) :]
            self.model.load_weights([(name, tensor)])

    def shutdown(self):
        if hasattr(self, "stream"):
            self.stream.close()


WeightTransferEngineFactory.register_engine("longrein_socket", SocketEngine)


class Extension:
    """What ``/collective_rpc`` may call beside the worker's own methods."""

    def longrein_pace(self, step_s):
        """From here on every step takes so much longer."""
        full_speed = type(self).execute_model

        def paced(scheduler_output):
            time.sleep(step_s)
            return full_speed(self, scheduler_output)

        self.execute_model = paced
