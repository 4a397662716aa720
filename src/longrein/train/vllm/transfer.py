"""Weights by vLLM's weight-transfer API: every server receives while the trainer sends, without a disk between them.

The routes are those of vLLM 0.32 (``/init_weight_transfer_engine``, ``/start_weight_update``, ``/update_weights``,
``/finish_weight_update``); how tensors travel is a :class:`TransferLink`'s business.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from torch import Tensor

from longrein.engines.vllm.control import ServerControl
from longrein.engines.vllm.labels import UNLABELLED
from longrein.engines.vllm.updates import WeightUpdates
from longrein.errors import EngineError
from longrein.train.vllm.aside import Aside
from longrein.train.vllm.shapes import Shapes, as_tensors, check_served, shapes_of
from longrein.train.vllm.tied import Tied, under_every_name


class TransferLink(Protocol):
    """The trainer's end of one backend. It has rank 0; servers come after it, one rank a worker of theirs."""

    backend: str
    """As in ``--weight-transfer-config``."""

    def offer(self, rank_offset: int, world_size: int) -> Mapping[str, Any]:
        """What a server is told to join with: its ``init_info``."""
        ...

    def join(self, world_size: int) -> None:
        """Return once all servers have joined. Raises :class:`EngineError`."""
        ...

    def send(self, tensors: Mapping[str, Tensor]) -> None:
        """Send to all servers, which receive in the same order. Raises :class:`EngineError`."""
        ...

    def close(self) -> None:
        """Let go of what :meth:`join` made."""
        ...


class Transfer:
    """One sending to all servers; :class:`~longrein.engines.vllm.updates.Weights`.

    Args:
        send: sends, while all servers receive.
        described: of the tensors, for the servers: ``names``, ``dtype_names`` and ``shapes``.
        servers: how many receive.
        timeout_s: how long the servers wait for each other.
    """

    def __init__(
        self, send: Callable[[], None], described: Mapping[str, Any], *, servers: int, timeout_s: float
    ) -> None:
        self._described = described
        self._timeout_s = timeout_s
        self._all_there = threading.Barrier(servers + 1)
        self._send = send
        self._gone = False
        """Sent, or given up."""
        self._begun: set[str] = set()
        """URLs of servers that were asked to receive: the second time nobody would send."""
        self._sending = Aside(self._send_once, "sending weights")

    def refuse_gone(self, server: ServerControl) -> None:
        """Once they are sent, they are gone: a server that is started again gets nothing until the next update."""
        if self._gone:
            raise EngineError(f"weights for {server.url} were sent once, and are gone; the next update brings others")
        if server.url in self._begun:
            raise EngineError(
                f"{server.url} was lost in the middle of an update, and weights are sent once; the next update brings "
                "others; see the server's log"
            )

    def change(self, server: ServerControl) -> None:
        """Receive what is sent."""
        self.whole(server)

    def whole(self, server: ServerControl) -> None:
        """The same."""
        self.refuse_gone(server)
        self._begun.add(server.url)
        try:
            server.call("/start_weight_update")
            self._all_there.wait(self._timeout_s)
            server.call("/update_weights", {"update_info": self._described})
            server.call("/finish_weight_update", {})
        except threading.BrokenBarrierError as error:
            raise EngineError(
                f"{server.url} was ready for weights that are not sent any more: another server was not, or this one "
                "was started again"
            ) from error
        except BaseException:
            self._all_there.abort()
            raise

    def ended(self) -> None:
        """Wait for the sending to end. Raises what it raised."""
        self._gone = True
        self._sending.wait(self._timeout_s)

    def give_up(self) -> None:
        """Nobody waits for anybody any more."""
        self._gone = True
        self._all_there.abort()

    def _send_once(self) -> None:
        try:
            self._all_there.wait(self._timeout_s)
        except threading.BrokenBarrierError as error:
            raise EngineError("weights were not sent, since a server was not ready for them") from error
        self._send()


class TransferWeights:
    """A :class:`~longrein.engines.base.WeightReceiver` over a link.

    A server that is started again in the middle of a run joins at the next update, and until then has only the weights
    it was started with, which no client takes. It does not stand still meanwhile: its requests are refused at once, and
    go elsewhere.

    Args:
        updates: the servers.
        link: the trainer's end.
        tied: of the model in training.
        timeout_s: of joining and of one sending.
    """

    def __init__(self, updates: WeightUpdates, link: TransferLink, tied: Tied, timeout_s: float) -> None:
        self._updates = updates
        self._link = link
        self._tied = tied
        self._timeout_s = timeout_s
        self._known: Shapes = {}
        self._joined = False
        self._sound = False
        """Whether all that joined can be sent to; not after a sending that broke off in the middle."""

    def update(self, tensors: object, policy_version: int) -> None:
        """See :class:`~longrein.engines.base.WeightReceiver`. Names and shapes are those of the served model."""
        self._updates.refuse_old(policy_version)
        named = as_tensors(tensors)
        check_served(named, self._known, self._updates.servers)
        self._join_if_needed()
        self._known = shapes_of(named)
        sent = under_every_name(named, self._tied)
        transfer = Transfer(
            lambda: self._link.send(sent),
            described(sent),
            servers=len(self._updates.servers),
            timeout_s=self._timeout_s,
        )
        try:
            self._updates.publish(transfer, policy_version)
            transfer.ended()
        except BaseException:
            # Also interrupted: what is under way on the link is not to be mixed with the next.
            transfer.give_up()
            self._sound = False
            raise

    def close(self) -> None:
        """Look after the servers no more, and close the link."""
        self._updates.close()
        self._link.close()

    def _join_if_needed(self) -> None:
        servers = self._updates.servers
        self._updates.wait_for_all()
        if self._sound and all(server.label() != UNLABELLED for server in servers):
            return
        if self._joined:
            self._link.close()
            for server in servers:
                server.call("/shutdown_weight_transfer_engine")
        self._joined, self._sound = True, False
        sizes = [int(server.get("/get_world_size").field("world_size")) for server in servers]
        world_size = 1 + sum(sizes)
        offsets = [1 + sum(sizes[:place]) for place in range(len(sizes))]
        joining = Aside(lambda: self._link.join(world_size), "joining the servers")
        with ThreadPoolExecutor(max_workers=len(servers)) as pool:
            offers = [self._link.offer(offset, world_size) for offset in offsets]
            list(pool.map(_join, servers, offers))
        joining.wait(self._timeout_s)
        self._sound = True


def described(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What a server must know of tensors before they come."""
    return {
        "names": list(tensors),
        "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
        "shapes": [list(tensor.shape) for tensor in tensors.values()],
    }


def _join(server: ServerControl, info: Mapping[str, Any]) -> None:
    server.call("/init_weight_transfer_engine", {"init_info": dict(info)})
