"""What is left of an update that failed: versions that are right, and no server that stands still for nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from longrein.engines.vllm.control import ControlTimeouts, ServerControl
from longrein.engines.vllm.labels import UNLABELLED
from longrein.errors import EngineError, EngineUnreachableError
from longrein.train.vllm.delta import DeltaWeights
from longrein.train.vllm.transfer import Transfer, TransferWeights
from tests.engines.vllm.closed_ports import dead_url
from tests.engines.vllm.stand_in import Settings, StandIn
from tests.engines.vllm.test_updates import publish, updates
from tests.waiting import until

WHOLE = "/collective_rpc /start"


@pytest.fixture
async def server() -> AsyncIterator[StandIn]:
    async with StandIn(Settings()).listening() as made:
        yield made


class Changed:
    """Weights that have their difference to the version before in a folder of its own."""

    def refuse_gone(self, server: ServerControl) -> None:
        """They stay there."""

    def change(self, server: ServerControl) -> None:
        server.reload("/difference")

    def whole(self, server: ServerControl) -> None:
        server.reload("/start")


@pytest.mark.parametrize("refused", ["/reset_prefix_cache", "/update_weight_version"])
async def test_new_weights_never_go_on_under_the_old_label(server: StandIn, refused: str) -> None:
    made = updates(server.url)
    await publish(made, "/start", 3)
    server.calls.clear()
    server.settings.refused = {refused: 1}
    with pytest.raises(EngineError, match="1 of 1"):
        await publish(made, "/wrong", 4)
    assert server.settings.label == "3"
    loaded = [call for call in server.calls if call.startswith("/collective_rpc")]
    assert loaded == ["/collective_rpc /wrong", WHOLE], "the weights of version 3 are back"
    assert server.calls[-1] == "/resume"
    await asyncio.to_thread(made.close)


async def test_after_an_answer_that_was_lost_the_next_try_brings_everything(server: StandIn) -> None:
    """A server in the middle of a load holds anything: what changed since the version before is not enough."""
    made = updates(server.url, outage_timeout_s=60.0)
    await publish(made, "/start", 3)
    server.calls.clear()
    server.settings.cut_off = {"/collective_rpc": 1}
    await asyncio.to_thread(made.publish, Changed(), 4)
    assert [call for call in server.calls if call != "/pause?mode=keep"] == [
        "/collective_rpc /difference",
        WHOLE,
        "/reset_prefix_cache?reset_running_requests=true",
        "/update_weight_version",
        "/resume",
    ]
    await asyncio.to_thread(made.close)


async def test_a_server_whose_label_was_lost_stands_still_until_it_has_one(server: StandIn) -> None:
    made = updates(server.url, outage_timeout_s=60.0)
    await publish(made, "/start", 3)
    server.calls.clear()
    server.settings.cut_off = {"/update_weight_version": 1}
    await publish(made, "/start", 4)
    assert server.calls.count("/resume") == 1
    assert server.calls[-2:] == ["/update_weight_version", "/resume"]
    await asyncio.to_thread(made.close)


async def test_a_pause_that_was_not_heard_of_is_taken_back(server: StandIn) -> None:
    made = updates(server.url, outage_timeout_s=0.1)
    await publish(made, "/start", 3)
    server.calls.clear()
    server.settings.cut_off = {"/pause": 9}
    with pytest.raises(EngineError, match="1 of 1"):
        await publish(made, "/start", 4)
    assert server.calls[-1] == "/resume"
    await asyncio.to_thread(made.close)


async def test_weights_put_back_are_those_of_their_version(server: StandIn, tmp_path: Path) -> None:
    """Not the next version's, which the trainer has in its memory by then."""
    made = updates(server.url)
    receiver = DeltaWeights(made, tmp_path / "weights", {})
    same = torch.zeros(2)
    for version in (1, 2):
        await asyncio.to_thread(receiver.update, {"a": torch.full((3,), float(version)), "b": same}, version)
    server.settings.refused = {"/collective_rpc": 1}
    with pytest.raises(EngineError, match="1 of 1"):
        await asyncio.to_thread(receiver.update, {"a": torch.full((3,), 3.0), "b": same}, 3)
    put_back = load_file(tmp_path / "weights" / "v2" / "model.safetensors")
    assert put_back["a"].tolist() == [2.0, 2.0, 2.0]
    await asyncio.to_thread(receiver.close)


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b""]
)
async def test_a_server_that_drips_is_out_of_time_as_a_silent_one_is(head: bytes) -> None:
    ended = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        with contextlib.suppress(OSError):
            # Whoever reads on as long as something comes reads for ever.
            while True:
                writer.write(b"H")
                await writer.drain()
                await asyncio.sleep(0.1)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with (
            ServerControl(url, ControlTimeouts(health_s=0.5, update_s=0.5)) as control,
            pytest.raises(EngineUnreachableError, match=r"within 0.5 s"),
        ):
            await asyncio.wait_for(asyncio.to_thread(control.healthy), 60.0)
        await ended.wait()


async def test_the_watch_brings_back_a_server_that_was_left_in_the_middle(server: StandIn) -> None:
    made = updates(server.url, outage_timeout_s=0.1)
    await publish(made, "/start", 3)
    server.calls.clear()
    server.settings.cut_off = {"/update_weight_version": 2}
    with pytest.raises(EngineError, match="1 of 1"):
        await publish(made, "/start", 4)
    await until(lambda: server.calls[-1:] == ["/resume"])
    assert server.calls[-2:] == ["/update_weight_version", "/resume"]
    assert server.settings.label == "3"
    await asyncio.to_thread(made.close)


async def test_weights_that_were_sent_once_are_not_waited_for_again(server: StandIn) -> None:
    """By NCCL they are gone. A server that was started again must not hold up the next update."""
    made = updates(server.url)
    transfer = Transfer(lambda: None, {}, servers=1, timeout_s=600.0)
    await asyncio.to_thread(made.publish, transfer, 3)
    await asyncio.to_thread(transfer.ended)
    server.settings.label = UNLABELLED
    with pytest.raises(EngineError, match="sent once, and are gone"):
        await asyncio.wait_for(asyncio.to_thread(made.publish, transfer, 3), 120.0)
    await asyncio.to_thread(made.close)


class Link:
    """The trainer's end of a transfer that has no bytes."""

    backend = "none"

    def __init__(self) -> None:
        self.joined: list[int] = []

    def offer(self, rank_offset: int, world_size: int) -> Mapping[str, Any]:
        return {"rank_offset": rank_offset, "world_size": world_size}

    def join(self, world_size: int) -> None:
        self.joined.append(world_size)

    def send(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """There is nobody to send to."""

    def close(self) -> None:
        """Nothing is open."""


def transfers(link: Link, *urls: str, outage_timeout_s: float = 60.0) -> TransferWeights:
    return TransferWeights(updates(*urls, outage_timeout_s=outage_timeout_s), link, {}, timeout_s=60.0)


async def send(receiver: TransferWeights, version: int) -> None:
    await asyncio.to_thread(receiver.update, {"a": torch.ones(2)}, version)


async def test_a_server_that_restarts_in_the_middle_of_a_transfer_does_not_stand_still(server: StandIn) -> None:
    """It has nothing to go on with, but whoever asks it must hear that, and go elsewhere."""
    link = Link()
    receiver = transfers(link, server.url)
    await send(receiver, 1)
    server.settings.restarts_at = "/update_weights"
    with pytest.raises(EngineError, match=r"1 of 1.*lost in the middle of an update"):
        await send(receiver, 2)
    assert not server.stands_still
    server.calls.clear()
    looked = server.reads["/weight_info"]
    await until(lambda: server.reads["/weight_info"] >= looked + 2)
    assert (server.calls, server.stands_still) == ([], False), "whoever looks after it pauses it no more"
    await send(receiver, 3)
    assert (server.settings.label, server.stands_still) == ("3", False)
    assert link.joined == [2, 2]
    await asyncio.to_thread(receiver.close)


async def test_a_server_that_is_left_in_the_middle_of_a_transfer_stands_still_until_the_next(server: StandIn) -> None:
    """It has half of its weights: going on would end it."""
    link = Link()
    receiver = transfers(link, server.url)
    await send(receiver, 1)
    server.settings.cut_off = {"/update_weights": 1}
    with pytest.raises(EngineError, match=r"1 of 1.*lost in the middle of an update"):
        await send(receiver, 2)
    assert server.stands_still
    await send(receiver, 3)
    assert (server.settings.label, server.stands_still) == ("3", False)
    assert link.joined == [2, 2], "a sending that broke off leaves nothing to send by"
    await asyncio.to_thread(receiver.close)


async def test_a_server_that_is_out_is_waited_for_before_a_transfer() -> None:
    with dead_url() as dead:
        receiver = transfers(Link(), dead, outage_timeout_s=0.3)
        with pytest.raises(EngineError, match=rf"1 of 1.*{dead}.*Waited 0.3 s for it"):
            await send(receiver, 1)
    await asyncio.to_thread(receiver.close)
