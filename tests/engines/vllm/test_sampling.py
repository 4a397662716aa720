"""What a real vLLM server samples for us: the tokens, their logprobs, and where they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from longrein.doctor.draws import Sampler
from longrein.engines.vllm.client import VllmEngine
from longrein.engines.vllm.routes import CompletionsRoute, TokensRoute
from longrein.errors import ContextLengthError, EngineError, EngineRequestError
from tests import tiny
from tests.engines.vllm import rig
from tests.engines.vllm.closed_ports import dead_url
from tests.waiting import until

pytestmark = pytest.mark.vllm
PROMPT = [10, 20, 30, 40]


@pytest.fixture
async def engine(served: Any) -> AsyncIterator[VllmEngine]:
    rig_engine = await rig.spec(served.url, model=served.model).connect()
    yield rig_engine
    await rig_engine.close()


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3])
async def test_logprobs_are_the_trainers(engine: VllmEngine, served: Any, temperature: float) -> None:
    """Whatever sampling defaults the model's folder hides."""
    completion = await engine.generate(rig.request(PROMPT, max_tokens=40, temperature=temperature))
    assert (completion.token_ids.size, completion.finish_reason) == (40, "length")
    assert len(set(completion.token_ids.tolist())) > 10, "the folder's top_k = 1 was applied"
    assert rig.gap(rig.load(served.model), PROMPT, completion, temperature) < 1e-4
    assert completion.prefill_tokens == len(PROMPT)


async def test_a_seed_gives_the_same_tokens_and_another_one_others(engine: VllmEngine) -> None:
    first, again, other = [await engine.generate(rig.request(PROMPT, seed=seed)) for seed in (5, 5, 6)]
    assert np.array_equal(first.token_ids, again.token_ids)
    assert not np.array_equal(first.token_ids, other.token_ids)


async def test_greedy_tokens_were_certain(engine: VllmEngine) -> None:
    completion = await engine.generate(rig.request(PROMPT, temperature=0.0))
    assert completion.logprobs.tolist() == [0.0] * completion.token_ids.size


async def test_the_doctor_finds_the_hottest_temperature(engine: VllmEngine) -> None:
    """The server refuses more than 2, and lives."""
    sampler = Sampler(engine, "hottest")
    assert await sampler.hottest(np.array(PROMPT, np.int32)) == 2.0
    assert (await sampler.draws(np.array(PROMPT, np.int32), 4, 2.0)).size == 4


async def test_stop_tokens_and_strings_end_it_and_stay_in_it(engine: VllmEngine) -> None:
    whole = (await engine.generate(rig.request(PROMPT, seed=3))).token_ids
    stop = int(whole[5])
    at = whole.tolist().index(stop)
    by_id = await engine.generate(rig.request(PROMPT, seed=3, stop_token_ids=(stop,)))
    assert by_id.finish_reason == "stop"
    assert by_id.token_ids.tolist() == whole[: at + 1].tolist()
    letters = [token for token in range(36, 90) if tiny.tokenizer().decode([token]).isalpha()]
    wanted = next(place for place, token in enumerate(whole.tolist()) if token in letters)
    text = tiny.tokenizer().decode([int(whole[wanted])])
    by_text = await engine.generate(rig.request(PROMPT, seed=3, stop=(text,)))
    assert by_text.finish_reason == "stop"
    assert by_text.token_ids.tolist() == whole[: wanted + 1].tolist()


async def test_the_models_own_end_token_ends_nothing(engine: VllmEngine, served: Any) -> None:
    """Sampled often enough here, it is in no request's stop tokens."""
    many = [engine.generate(rig.request(PROMPT, name=f"e{n}", seed=n, max_tokens=300)) for n in range(4)]
    completions = await asyncio.gather(*many)
    assert any(2 in completion.token_ids for completion in completions)
    assert {completion.finish_reason for completion in completions} == {"length"}


async def test_a_next_turn_computes_what_is_new(engine: VllmEngine) -> None:
    prompt = [7 + n % 200 for n in range(300)]
    first = await engine.generate(rig.request(prompt))
    turn = [*prompt, *first.token_ids.tolist(), 9]
    second = await engine.generate(rig.request(turn))
    assert second.prefill_tokens < len(turn) - 200


async def test_what_cannot_be_sampled_is_refused_and_the_server_lives(engine: VllmEngine) -> None:
    with pytest.raises(ContextLengthError):
        await engine.generate(rig.request([5] * rig.CONTEXT))
    with pytest.raises(EngineRequestError, match="outside the vocabulary"):
        await engine.generate(rig.request([5, 99999]))
    with pytest.raises(EngineRequestError, match="empty"):
        await engine.generate(rig.request([]))
    with pytest.raises(EngineRequestError, match="out of range"):
        await engine.generate(rig.request([5], top_p=7.0))
    # vLLM 0.32 on a CPU ends over a seeded request whose prompt it prefills in pieces (docs/doctor.md).
    last = await engine.generate(rig.request([5] * (rig.CONTEXT - 1), max_tokens=99, seed=None))
    assert (last.token_ids.size, last.finish_reason) == (1, "length")


@pytest.mark.parametrize("route", [TokensRoute(), CompletionsRoute()])
async def test_the_servers_own_refusals_are_read_right(engine: VllmEngine, route: Any) -> None:
    """The client checks before it asks; here it does not."""
    (member,) = engine._fleet.members
    with pytest.raises(EngineRequestError, match="400"):
        await route.ask(member.server, member.model, rig.request([5], top_p=7.0))
    with pytest.raises(ContextLengthError):
        await route.ask(member.server, member.model, rig.request([5] * (rig.CONTEXT + 7)))
    with pytest.raises(EngineRequestError, match="out of vocabulary"):
        await route.ask(member.server, member.model, rig.request([5, 99999]))
    with pytest.raises(EngineError, match="does not exist"):
        await route.ask(member.server, "another", rig.request([5]))


async def test_the_completions_route_gives_the_same(engine: VllmEngine) -> None:
    (member,) = engine._fleet.members
    request = rig.request(PROMPT, seed=11, stop=("zz",))
    ours, theirs = [
        await route.ask(member.server, member.model, request) for route in (TokensRoute(), CompletionsRoute())
    ]
    assert ours.token_ids.tolist() == theirs.token_ids.tolist()
    np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-5)
    assert set(ours.labels) == set(theirs.labels)


async def test_cancelling_frees_the_server(engine: VllmEngine, served: Any) -> None:
    with rig.slowed(served.url):
        requests = [rig.long_request(PROMPT, name=f"c{n}") for n in range(16)]
        asked = await rig.under_way(served.url, [engine.generate(request) for request in requests], tokens=3)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await until(lambda: at_the_server(served.url) == 0)


async def test_a_conversation_goes_on_elsewhere_when_its_server_is_out(served: Any) -> None:
    """Two of the three names of the server are those of closed ports; all conversations are answered."""
    engine = await rig.spec(served.url, model=served.model).connect()
    with dead_url() as one, dead_url() as other:
        engine._fleet.members = (*engine._fleet.members, *dead_members(engine, one, other))
        asked = (engine.generate(rig.request(PROMPT, name=f"f{n}", max_tokens=4)) for n in range(12))
        # An outage may last longer than that.
        made = await asyncio.wait_for(asyncio.gather(*asked), engine._outage_timeout_s / 3)
    assert all(completion.token_ids.size == 4 for completion in made)
    await engine.close()


def dead_members(engine: VllmEngine, *urls: str) -> list[Any]:
    from longrein.engines.vllm.fleet import Member
    from longrein.engines.vllm.server import Server

    (live,) = engine._fleet.members
    return [Member(server=Server(url, engine._session, 5.0), route=live.route, model=live.model) for url in urls]


def at_the_server(url: str) -> int:
    """Requests that run there, or wait."""
    return rig.metric(url, "vllm:num_requests_running") + rig.metric(url, "vllm:num_requests_waiting")
