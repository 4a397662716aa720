"""Measurements of our gateway that are no cell of the table: first calls, paced events, memory, many sessions."""

from __future__ import annotations

import asyncio
import time
from statistics import median

import msgspec

from gateway_bench.payloads import PAYLOADS, Root
from gateway_bench.process import Endpoint, ServerProcess
from gateway_bench.scenes import GROUP, Load, Stage, growing, varied, whole

PAYLOAD = PAYLOADS[0]
PACED_S = 0.01
"""Time between two events of the paced measurement."""


class FirstCalls(msgspec.Struct, frozen=True, kw_only=True):
    """CPU of the first call of a session, in ms."""

    unseen_ms: float
    """A prompt that no session had before."""
    group_ms: float
    """The prompt of another member of the group."""


async def first_calls(server: ServerProcess, stage: Stage, root: Root) -> FirstCalls:
    """First calls only, one at a time."""
    unseen, group = 0.0, 0.0
    endpoints = await server.open(2 * GROUP)
    for at in range(GROUP):
        new = varied(root, stage.speaker)
        clocks = [server.cpu_s()]
        for endpoint in endpoints[2 * at : 2 * at + 2]:
            await stage.talk(new, endpoint, stream=False).ask()
            clocks.append(server.cpu_s())
        unseen += clocks[1] - clocks[0]
        group += clocks[2] - clocks[1]
    await server.close_sessions()
    return FirstCalls(unseen_ms=1e3 * unseen / GROUP, group_ms=1e3 * group / GROUP)


async def whole_rollouts(server: ServerProcess, stage: Stage, root: Root) -> float:
    """CPU in ms a call over rollouts of 20 calls, first calls, closing and the written record included."""
    load = Load(concurrency=16, sessions=16, steps=20)
    return (await whole(server, stage, root, load)).cpu_ms


async def paced_event_us(server: ServerProcess, stage: Stage, root: Root) -> float:
    """CPU in us of one keep-alive of a waiting stream. The calls themselves are counted too: an upper bound."""
    await stage.can(PAYLOAD, root, delay_s=2.0)
    endpoints = await server.open(32)
    talks = [stage.talk(root, endpoint, stream=True) for endpoint in endpoints]
    await stage.talk(root, (await server.open(1))[0], stream=True).ask()
    begin = server.cpu_s()
    heard = await asyncio.gather(*[talk.ask() for talk in talks])
    spent = server.cpu_s() - begin
    await server.close_sessions()
    await stage.can(PAYLOAD, root)
    return 1e6 * spent / sum(answer.comments for answer in heard)


async def growth_kb(server: ServerProcess, stage: Stage, root: Root) -> float:
    """Resident memory in kB that an extending call leaves behind while its session is open."""
    talks = [stage.talk(root, endpoint, stream=False) for endpoint in await server.open(8)]

    async def go_on(calls: int) -> None:
        for talk in talks:
            for _ in range(calls):
                talk.go_on(await talk.ask(), stage.speaker.result())

    await go_on(10)
    begin = server.rss_bytes()
    await go_on(50)
    grown = server.rss_bytes() - begin
    await server.close_sessions()
    return grown / 1024 / (len(talks) * 50)


async def added_latency_ms(server: ServerProcess, stage: Stage, root: Root) -> float:
    """How much later an answer comes through the gateway than from the engine itself; medians at concurrency 1."""
    direct = stage.talk(root, Endpoint(url=f"{stage.upstream}/v1/chat/completions"), stream=False)
    through = stage.talk(root, (await server.open(1))[0], stream=False)
    times: dict[str, list[float]] = {"direct": [], "through": []}
    for _ in range(60):
        for name, talk in (("direct", direct), ("through", through)):
            heard = await talk.ask()
            times[name].append(heard.seconds)
            talk.go_on(heard, stage.speaker.result())
    await server.close_sessions()
    # Only the first 40: later ones are longer than the payload.
    return 1e3 * (median(times["through"][2:40]) - median(times["direct"][2:40]))


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """500 sessions at once."""

    sessions: int
    calls: int
    peak_rss_mb: float
    seconds: float
    delivered: int


async def crowd(server: ServerProcess, stage: Stage, root: Root) -> Crowd:
    """All at once, each a first call and five that extend it; memory at its peak, loaded tokenizer included."""
    load = Load(concurrency=500, sessions=500, steps=5)
    began = time.perf_counter()
    block = await growing(server, stage, root, load)
    return Crowd(
        sessions=load.sessions,
        calls=load.sessions * (load.steps + 1),
        peak_rss_mb=server.peak_rss_bytes() / 2**20,
        seconds=time.perf_counter() - began,
        delivered=block.captured["delivered"],
    )
