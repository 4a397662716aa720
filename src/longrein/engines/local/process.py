"""The engine as its owner sees it: whoever holds the weights starts it, updates it and stops it."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

from longrein.engines.base import EngineInfo
from longrein.engines.local import wire
from longrein.engines.local.adapters import AdaptableWeights
from longrein.engines.local.child import EngineChild
from longrein.engines.local.client import LocalEngineSpec
from longrein.engines.local.config import LocalEngineConfig
from longrein.errors import EngineError, EngineGoneError

_COMMAND_TIMEOUT_S = 300.0


class _Running:
    """A child that is ready."""

    def __init__(self, child: EngineChild, ready: wire.Ready) -> None:
        self.child = child
        self.info = ready.info
        self.weights = AdaptableWeights(ready.manifest, child.weights_fd, self.command)
        self._lock = threading.Lock()

    def command(self, frame: wire.FromOwner) -> None:
        """Have the engine carry something out, from any thread.

        Raises:
            EngineError: it could not; or it did not answer in time, and was ended.
        """
        with self._lock:
            try:
                self.child.tell(frame)
                reply = self.child.hear(_COMMAND_TIMEOUT_S)
            except EngineGoneError:
                raise
            except BaseException:
                # What it says later would be taken for the answer to another command, and it may still read weights
                # that are about to be written over.
                self.child.close()
                raise
        if isinstance(reply, wire.NotTaken):
            raise EngineError(f"the engine for {self.info.model} did not take the weights: {reply.message}")


class LocalEngineProcess:
    """One engine process. Also a context manager: entering starts it, leaving stops it.

    The engine begins with the model folder's weights, as policy version 0. It dies with this process.
    """

    def __init__(self, config: LocalEngineConfig) -> None:
        self._config = config
        self._running: _Running | None = None
        self._finalizer: weakref.finalize[..., LocalEngineProcess] | None = None

    def start(self, timeout_s: float = 300.0) -> None:
        """Start the process and wait until it answers. Starting twice does nothing.

        Raises:
            EngineError: no such folder, no answer in time, or the process died (with the end of its log).
        """
        if self._running is not None:
            return
        if not Path(self._config.model).is_dir():
            raise EngineError(f"{self._config.model} is not a folder; give the engine a model saved by save_pretrained")
        child = EngineChild(self._config)
        self._finalizer = weakref.finalize(self, child.close)
        try:
            ready = child.hear(timeout_s)
            assert isinstance(ready, wire.Ready)
            self._running = _Running(child, ready)
        finally:
            if self._running is None:
                child.close()

    def stop(self) -> None:
        """Kill the engine; pending requests fail with :class:`EngineError`. Takes no time; idempotent."""
        if self._finalizer is not None:
            self._finalizer()
        self._running = None

    @property
    def info(self) -> EngineInfo:
        """What the engine said of its model. Raises :class:`EngineError` before the start."""
        return self._started().info

    @property
    def pid(self) -> int:
        """Process id of the engine. Raises :class:`EngineError` before the start."""
        return self._started().child.pid

    @property
    def spec(self) -> LocalEngineSpec:
        """How other processes reach the engine. Raises :class:`EngineError` before the start."""
        return LocalEngineSpec(socket_path=self._started().child.socket_path, model=self._config.model)

    @property
    def weights(self) -> AdaptableWeights:
        """Where new weights and adapters go. Raises :class:`EngineError` before the start."""
        return self._started().weights

    def pause(self) -> None:
        """Have the engine compute nothing until :meth:`resume`: requests wait where they are, weights can change.

        This and the next two work from any thread and return once it is so.

        Raises:
            EngineError: before the start, or the engine is gone.
        """
        self._started().command(wire.Pause())

    def resume(self) -> None:
        """Go on computing. Raises :class:`EngineError` before the start, or when the engine is gone."""
        self._started().command(wire.Resume())

    def clear_cache(self) -> None:
        """Free the KV of all that does not run. Raises :class:`EngineError` as :meth:`pause` does."""
        self._started().command(wire.ClearCache())

    def _started(self) -> _Running:
        if self._running is None:
            raise EngineError(f"the engine for {self._config.model} is not running; call start() first")
        return self._running

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
