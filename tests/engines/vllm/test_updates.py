"""The order of an update, whatever fails in it, on a server that answers as vLLM was recorded to."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.engines.vllm import fleet as fleet_module
from longrein.engines.vllm.control import ControlTimeouts, ServerControl
from longrein.engines.vllm.fleet import Fleet, Member
from longrein.engines.vllm.labels import UNLABELLED, Labels
from longrein.engines.vllm.updates import WeightUpdates
from longrein.engines.vllm.urls import server_urls
from longrein.errors import ConfigError, EngineError, EngineUnreachableError
from longrein.train.vllm.delta import group_of
from longrein.train.vllm.folder import WeightFolder
from longrein.train.vllm.shapes import refuse_other_shapes, shapes_of
from tests.engines.vllm.closed_ports import dead_url
from tests.engines.vllm.stand_in import Settings, StandIn
from tests.waiting import until

ORDER = [
    "/pause?mode=keep",
    "/collective_rpc /start",
    "/reset_prefix_cache?reset_running_requests=true",
    "/update_weight_version",
    "/resume",
]


@pytest.fixture
async def server() -> AsyncIterator[StandIn]:
    async with StandIn(Settings()).listening() as made:
        yield made


def updates(*urls: str, outage_timeout_s: float = 0.5) -> WeightUpdates:
    timeouts = ControlTimeouts(health_s=60.0, update_s=60.0)
    servers = [ServerControl(url, timeouts) for url in urls]
    return WeightUpdates(servers, pause="keep", outage_timeout_s=outage_timeout_s)


async def publish(made: WeightUpdates, folder: str, version: int) -> None:
    await asyncio.to_thread(made.publish, WeightFolder(Path(folder)), version)


async def test_an_update_pauses_first_and_resumes_last(server: StandIn) -> None:
    made = updates(server.url)
    await publish(made, "/start", 3)
    assert server.calls == ORDER
    assert server.settings.label == "3"
    with pytest.raises(EngineError, match="version 2 is older than the servers' 3"):
        await publish(made, "/start", 2)
    await asyncio.to_thread(made.close)


async def test_weights_that_cannot_be_loaded_are_followed_by_those_before_then_by_going_on(server: StandIn) -> None:
    made = updates(server.url)
    await publish(made, "/start", 3)
    server.calls.clear()
    server.settings.reload_fails = True
    with pytest.raises(EngineError, match=r"1 of 1 vLLM servers did not take the weights.*no such folder"):
        await publish(made, "/wrong", 4)
    assert server.calls == [
        "/pause?mode=keep",
        "/collective_rpc /wrong",
        "/collective_rpc /start",
        "/reset_prefix_cache?reset_running_requests=true",
        "/resume",
    ]
    assert server.settings.label == "3"
    await asyncio.to_thread(made.close)


async def test_a_server_that_has_no_weights_at_all_stands_still(server: StandIn) -> None:
    """Going on would end it: the first request after a failed load kills vLLM's engine."""
    made = updates(server.url)
    server.settings.reload_fails = True
    with pytest.raises(EngineError, match=r"could not be put back either.*Start it again"):
        await publish(made, "/wrong", 4)
    assert server.calls[-1] == "/collective_rpc /no/folder/here"
    await asyncio.to_thread(made.close)


async def test_a_server_that_was_started_again_gets_its_weights_back(server: StandIn) -> None:
    made = updates(server.url)
    await publish(made, "/start", 3)
    server.calls.clear()
    server.settings.label = UNLABELLED
    await until(lambda: server.calls[-1:] == ORDER[-1:])
    assert server.settings.label == "3"
    assert server.calls == ORDER
    await asyncio.to_thread(made.close)


async def test_of_two_servers_the_dead_one_is_named_and_the_other_has_the_weights(server: StandIn) -> None:
    with dead_url() as dead:
        made = updates(dead, server.url)
        with pytest.raises(EngineError, match=rf"1 of 2.*{dead}"):
            await publish(made, "/start", 3)
    assert server.settings.label == "3"
    await asyncio.to_thread(made.close)


async def test_somebody_else_who_publishes_is_noticed(server: StandIn) -> None:
    made = updates(server.url)
    await publish(made, "/start", 3)
    server.settings.label = "9"
    with pytest.raises(EngineError, match="version 9 already; somebody else publishes"):
        await publish(made, "/start", 4)
    await asyncio.to_thread(made.close)


LABELS = st.lists(st.sampled_from([UNLABELLED, "0", "1", "7"]), min_size=1, max_size=4)


@settings(deadline=None, max_examples=60)
@given(st.lists(LABELS, min_size=1, max_size=6))
def test_unlabelled_weights_are_no_policy_once_a_label_was_seen(completions: list[list[str]]) -> None:
    labels, published = Labels(), False
    for told in completions:
        if published and UNLABELLED in told:
            with pytest.raises(EngineUnreachableError, match="started again"):
                labels.versions(told, "u")
            continue
        assert labels.versions(told, "u") == tuple(0 if label == UNLABELLED else int(label) for label in told)
        published = published or any(label != UNLABELLED for label in told)


def fleet(count: int) -> Fleet:
    servers: list[Any] = [type("Named", (), {"url": f"http://h{n}:1"})() for n in range(count)]
    route: Any = None
    return Fleet([Member(server=server, route=route, model="m") for server in servers])


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.text(max_size=20), st.integers(0, 5))
def test_a_conversation_stays_with_its_server_unless_that_is_out(count: int, name: str, lost: int) -> None:
    servers = fleet(count)
    first = servers.pick(name)
    assert servers.pick(name) is first
    other = servers.members[lost % count]
    with pytest.MonkeyPatch.context() as endless:
        # A server is kept away from for seconds, which may be over by the next line.
        endless.setattr(fleet_module, "AVOIDED_S", math.inf)
        another_left = servers.lost(other)
    assert another_left == (count > 1)
    assert (servers.pick(name) is first) == (other is not first or count == 1)


def test_conversations_spread() -> None:
    servers = fleet(4)
    homes = [servers.pick(f"c{n}").server.url for n in range(400)]
    assert all(60 < homes.count(member.server.url) < 140 for member in servers.members)


def test_base_urls() -> None:
    assert server_urls("http://h:1/v1/") == ("http://h:1",)
    assert server_urls(["http://h:1", "https://x"]) == ("http://h:1", "https://x")
    for wrong in ([], ["h:1"], ["http://h:1", "http://h:1/"], "ftp://h", "http://h:99999"):
        with pytest.raises(ConfigError):
            server_urls(wrong)


def test_what_vllm_joins_is_sent_together() -> None:
    layer = "model.layers.11"
    assert group_of(f"{layer}.self_attn.k_proj.weight") == group_of(f"{layer}.self_attn.v_proj.bias")
    assert group_of(f"{layer}.mlp.experts.3.up_proj.weight") == group_of(f"{layer}.mlp.experts.9.gate_proj.weight")
    assert group_of(f"{layer}.mlp.up_proj.weight") != group_of(f"{layer}.self_attn.k_proj.weight")
    assert group_of("model.norm.weight") != group_of("model.embed_tokens.weight")


def test_weights_of_another_model_are_named() -> None:
    model = {"a": torch.ones(2), "b": torch.ones(3), "lm_head.weight": torch.ones(4)}
    known = shapes_of(model)
    refuse_other_shapes({"a": torch.zeros(2), "b": torch.zeros(3)}, known, "u")
    for wrong, says in (
        ({"a": torch.ones(2)}, "missing b"),
        ({**model, "c": torch.ones(1)}, "unknown c"),
        ({**model, "a": torch.ones(9)}, "of another shape a"),
    ):
        with pytest.raises(EngineError, match=says):
            refuse_other_shapes(wrong, known, "u")
