"""vLLM servers as the run's engine: started here or by somebody else, with the run's own weights from the start."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from longrein.engines.base import WeightReceiver
from longrein.engines.vllm.process import ServerProcess
from longrein.engines.vllm.spec import VllmEngineSpec
from longrein.errors import EngineError
from longrein.train.folder_weights import folder_weights
from longrein.train.vllm.choose import SyncSettings, VllmReceiver, vllm_receiver
from longrein.train.vllm.tied import tied_names_of


class VllmServers:
    """All servers of a run.

    Args:
        spec: where they are, and of which model folder.
        sync: how weights come to them.
        processes: those that are started here; none for servers of somebody else.
        start_timeout_s: how long one may take to be well.
    """

    def __init__(
        self,
        *,
        spec: VllmEngineSpec,
        sync: SyncSettings,
        processes: Sequence[ServerProcess],
        start_timeout_s: float,
    ) -> None:
        self._spec = spec
        self._sync = sync
        self._processes = tuple(processes)
        self._start_timeout_s = start_timeout_s
        self._receiver: VllmReceiver | None = None

    def start(self) -> None:
        """Start what is to be started, and give every server the model's own weights, as policy version 0.

        Somebody else's server may hold those of an earlier run.

        Raises:
            EngineError: a server does not come up, lacks what it needs to take weights, or serves another model.
        """
        with ThreadPoolExecutor(max_workers=max(1, len(self._processes))) as pool:
            starting = [pool.submit(process.start, self._start_timeout_s) for process in self._processes]
            try:
                for started in as_completed(starting):
                    started.result()
            except BaseException:
                # One that does not come up, or Ctrl-C: the others are not waited for.
                for process in self._processes:
                    process.stop()
                raise
        self._receiver = vllm_receiver(self._sync, tied_names_of(self._spec.model))
        self._receiver.update(folder_weights(Path(self._spec.model)), 0)

    def stop(self) -> None:
        """Let go of the servers, and end those that were started here. Idempotent."""
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None
        for process in self._processes:
            process.stop()

    @property
    def spec(self) -> VllmEngineSpec:
        """How other processes reach them."""
        return self._spec

    @property
    def weights(self) -> WeightReceiver:
        """Where new weights and adapters go. Raises :class:`EngineError` before the start."""
        if self._receiver is None:
            raise EngineError(f"no contact with the vLLM servers for {self._spec.model}; call start() first")
        return self._receiver
