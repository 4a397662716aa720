"""New weights for every server of a run: pause, change, forget what was cached, name the version, go on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Protocol

from longrein.engines.vllm.control import PauseMode, ServerControl
from longrein.engines.vllm.labels import UNLABELLED, version_of
from longrein.engines.vllm.outage import Patience
from longrein.errors import EngineError, EngineUnreachableError

RETRY_S = 1.0
WATCH_EVERY_S = 2.0


class Weights(Protocol):
    """Weights that a server can be brought to."""

    def refuse_gone(self, server: ServerControl) -> None:
        """Raise :class:`EngineError` if this server cannot get them, or not any more. Touches nothing."""
        ...

    def change(self, server: ServerControl) -> None:
        """From those of the version before. Raises :class:`EngineError`."""
        ...

    def whole(self, server: ServerControl) -> None:
        """From any, or from none. Raises :class:`EngineError`."""
        ...


class StartWeights:
    """Those that a server was started with."""

    def refuse_gone(self, server: ServerControl) -> None:
        """See :class:`Weights`. They are there as long as the server is."""

    def change(self, server: ServerControl) -> None:
        """See :class:`Weights`."""
        self.whole(server)

    def whole(self, server: ServerControl) -> None:
        """See :class:`Weights`."""
        server.reload(server.served().root)


class WeightUpdates:
    """Brings servers from version to version, all of them each time; versions only grow.

    A server that is out is waited for, and one that comes back without the weights it had gets them again: at once,
    by a thread that looks after them until :meth:`close`.

    Args:
        servers: owned from here on.
        pause: what becomes of requests in flight.
        outage_timeout_s: how long an update waits for a server that does not answer.
    """

    def __init__(self, servers: Sequence[ServerControl], *, pause: PauseMode, outage_timeout_s: float) -> None:
        self._servers = tuple(servers)
        self._pause: PauseMode = pause
        self._outage_timeout_s = outage_timeout_s
        self._weights: Weights = StartWeights()
        self._version: int | None = None
        self._doubtful: set[str] = set()
        """URLs of servers that were left in the middle of an update: they stand still, and need all weights."""
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="longrein-vllm-weights", daemon=True)

    @property
    def servers(self) -> tuple[ServerControl, ...]:
        """All of them."""
        return self._servers

    def refuse_old(self, policy_version: int) -> None:
        """Raises :class:`EngineError` for a version older than the servers'."""
        if self._version is not None and policy_version < self._version:
            raise EngineError(
                f"policy version {policy_version} is older than the servers' {self._version}; versions only grow"
            )

    def publish(self, weights: Weights, policy_version: int) -> None:
        """Return once every server samples with ``weights``.

        Raises:
            EngineError: a server refused them, or did not answer in time; names each such server. The others have
                them. One that refused them has those it had before.
        """
        self.refuse_old(policy_version)
        with self._lock:
            self._on_each(lambda server: self._bring(server, weights, policy_version))
            self._weights, self._version = weights, policy_version
        if self._watcher.ident is None and not self._closed.is_set():
            self._watcher.start()

    def wait_for_all(self) -> None:
        """Return once every server answers. Raises :class:`EngineError`, which names each that does not in time."""
        self._on_each(lambda server: self._patiently(server.healthy))

    def rest(self) -> None:
        """Look after the servers no more; on return nothing changes them. Idempotent."""
        self._closed.set()
        if self._watcher.is_alive():
            self._watcher.join()

    def close(self) -> None:
        """Look after the servers no more, and close connections. Idempotent."""
        self.rest()
        for server in self._servers:
            server.close()

    def _on_each(self, act: Callable[[ServerControl], None]) -> None:
        with ThreadPoolExecutor(max_workers=len(self._servers)) as pool:
            doing = [pool.submit(act, server) for server in self._servers]
            # Interrupted here, the pool's end still waits: nobody else may change them meanwhile.
            wait(doing)
        problems: list[EngineError] = []
        for future in doing:
            error = future.exception()
            if isinstance(error, EngineError):
                problems.append(error)
            elif error is not None:
                raise error
        if problems:
            told = "; ".join(str(error) for error in problems)
            raise EngineError(
                f"{len(problems)} of {len(self._servers)} vLLM servers did not take the weights: {told}"
            ) from problems[0]

    def _bring(self, server: ServerControl, weights: Weights, policy_version: int) -> None:
        def change() -> None:
            server.healthy()
            self._change(server, weights, policy_version)

        self._patiently(change)

    def _patiently(self, act: Callable[[], None]) -> None:
        """Again and again while a server is out."""
        patience = Patience(self._outage_timeout_s)
        while True:
            try:
                act()
            except EngineUnreachableError as error:
                # One clock for all losses, since a wedged server is well by its own account.
                patience.lost(error)
                time.sleep(min(RETRY_S, self._outage_timeout_s))
            else:
                return

    def _change(self, server: ServerControl, weights: Weights, policy_version: int) -> None:
        label, doubtful = server.label(), server.url in self._doubtful
        goes_on = self._version is not None and label == str(self._version)
        ours = self._version is None or goes_on or doubtful or label == UNLABELLED
        if not ours and version_of(label) > policy_version:
            raise EngineError(f"{server.url} has version {label} already; somebody else publishes to it")
        act = weights.change if goes_on and not doubtful else weights.whole
        # Before the pause: a server that was started again may as well run, and one that was left in the middle of an
        # update stands still as it is.
        weights.refuse_gone(server)
        self._pause_it(server)
        try:
            act(server)
            # Before it goes on: new weights under the old label would be samples of the wrong policy.
            server.drop_caches()
            server.relabel(policy_version)
        except EngineUnreachableError:
            # It may hold anything now. Going on with half of its weights would end it; the next try brings it all.
            self._doubtful.add(server.url)
            raise
        except EngineError as error:
            self._put_back(server, error)
            raise
        self._go_on(server)

    def _pause_it(self, server: ServerControl) -> None:
        try:
            server.pause(self._pause)
        except EngineError:
            # It may have paused all the same, or do so later. Its weights are those it had.
            if server.url not in self._doubtful:
                with contextlib.suppress(EngineError):
                    server.resume()
            raise

    def _go_on(self, server: ServerControl) -> None:
        """Should it not be heard of, it is doubtful whether it stands still."""
        self._doubtful.add(server.url)
        server.resume()
        self._doubtful.discard(server.url)

    def _put_back(self, server: ServerControl, cause: EngineError) -> None:
        try:
            self._weights.whole(server)
            server.drop_caches()
        except EngineError as error:
            self._doubtful.add(server.url)
            raise EngineError(
                f"{cause}. The weights before could not be put back either ({error}): the server stands still, since "
                "going on without weights would end it. Start it again."
            ) from error
        self._go_on(server)

    def _watch(self) -> None:
        """Until closed: give its weights back to a server that was started again."""
        while not self._closed.wait(WATCH_EVERY_S):
            for server in self._servers:
                if self._lock.acquire(blocking=False):
                    try:
                        self._give_back(server)
                    except EngineError:
                        # Still out, or out again; looked at again soon, and the next update says what is wrong.
                        continue
                    finally:
                        self._lock.release()

    def _give_back(self, server: ServerControl) -> None:
        if self._version is not None and (server.url in self._doubtful or server.label() == UNLABELLED):
            self._change(server, self._weights, self._version)
