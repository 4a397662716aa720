"""What is measured: blocks of calls to one server, between two readings of its CPU clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Any

import aiohttp
import msgspec

from gateway_bench.client import Heard, Talk
from gateway_bench.payloads import RESULT_TOKENS, Payload, Root, Said, Speaker
from gateway_bench.process import Endpoint, ServerProcess

GROUP = 8
"""Sessions that share their first prompt, as the members of a group do."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How calls come in."""

    concurrency: int
    sessions: int
    steps: int
    """Measured calls of one session, one after the other."""
    stream: bool = False


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """What one block cost the server."""

    cpu_ms: float
    """A measured call, its share of what closing the sessions cost included."""
    close_ms: float
    """That share."""
    latency_ms: float
    """The client's median."""
    captured: dict[str, Any]


class Stage:
    """The canned engine and everything that clients need."""

    def __init__(self, upstream: str, speaker: Speaker, http: aiohttp.ClientSession) -> None:
        self.speaker = speaker
        self.upstream = upstream
        self._http = http
        self._completions: dict[int, list[Said]] = {}

    async def can(self, payload: Payload, root: Root, delay_s: float = 0.0) -> None:
        """Let the engine answer this payload from now on."""
        body = msgspec.json.encode(
            {
                "completions": self.completions(payload),
                "prompt_tokens": root.prompt_tokens,
                "root_messages": len(root.messages),
                "result_tokens": RESULT_TOKENS,
                "delay_s": delay_s,
            }
        )
        async with self._http.post(f"{self.upstream}/canned", data=body) as response:
            response.raise_for_status()

    def completions(self, payload: Payload) -> list[Said]:
        """What the engine says, made once."""
        tokens = payload.completion_tokens
        if tokens not in self._completions:
            self._completions[tokens] = self.speaker.completions(tokens)
        return self._completions[tokens]

    def talk(self, root: Root, endpoint: Endpoint, *, stream: bool) -> Talk:
        """A conversation that begins with ``root``."""
        return Talk(root, endpoint, self._http, stream=stream)


def varied(root: Root, speaker: Speaker) -> Root:
    """The same root with another task: another group's first prompt."""
    user = {"role": "user", "content": speaker.result() + str(root.messages[1]["content"])[: -5 * RESULT_TOKENS]}
    return msgspec.structs.replace(root, messages=[root.messages[0], user, *root.messages[2:]])


async def growing(server: ServerProcess, stage: Stage, root: Root, load: Load) -> Block:
    """Calls that each extend the one before. First calls are not measured; writing them at the close is."""
    talks = await _talks(server, stage, root, load)
    heard = await _each(talks, load.concurrency, lambda talk: talk.ask())
    for talk, answer in zip(talks, heard, strict=True):
        talk.go_on(answer, stage.speaker.result())

    async def steps(talk: Talk) -> list[float]:
        times: list[float] = []
        for _ in range(load.steps):
            answer = await talk.ask()
            times.append(answer.seconds)
            talk.go_on(answer, stage.speaker.result())
        return times

    return await _measured(server, talks, load, steps, written_calls=load.steps + 1)


async def repeated(server: ServerProcess, stage: Stage, root: Root, load: Load) -> Block:
    """The same request of a session again and again, each time answered anew."""
    talks = await _talks(server, stage, root, load)
    await _each(talks, load.concurrency, lambda talk: talk.ask())

    async def steps(talk: Talk) -> list[float]:
        return [(await talk.ask()).seconds for _ in range(load.steps)]

    return await _measured(server, talks, load, steps, written_calls=load.steps + 1)


async def whole(server: ServerProcess, stage: Stage, root: Root, load: Load) -> Block:
    """Rollouts from the first call to the written record, everything counted. Every group has a prompt never seen."""
    talks = await _talks(server, stage, root, load)

    async def steps(talk: Talk) -> list[float]:
        times: list[float] = []
        for _ in range(load.steps):
            answer = await talk.ask()
            times.append(answer.seconds)
            talk.go_on(answer, stage.speaker.result())
        return times

    return await _measured(server, talks, load, steps, written_calls=load.steps)


async def _talks(server: ServerProcess, stage: Stage, root: Root, load: Load) -> list[Talk]:
    endpoints = await server.open(load.sessions)
    roots = [varied(root, stage.speaker) for _ in range(0, load.sessions, GROUP)]
    return [stage.talk(roots[index // GROUP], endpoint, stream=load.stream) for index, endpoint in enumerate(endpoints)]


async def _measured(
    server: ServerProcess,
    talks: Sequence[Talk],
    load: Load,
    steps: Callable[[Talk], Awaitable[list[float]]],
    written_calls: int,
) -> Block:
    begin = server.cpu_s()
    times = await _each(talks, load.concurrency, steps)
    end = server.cpu_s()
    captured = await server.close_sessions()
    closed = server.cpu_s()
    close_ms = 1e3 * (closed - end) / (len(talks) * written_calls)
    return Block(
        cpu_ms=1e3 * (end - begin) / (len(talks) * load.steps) + close_ms,
        close_ms=close_ms,
        latency_ms=1e3 * median(seconds for session in times for seconds in session),
        captured=captured,
    )


async def _each(talks: Sequence[Talk], concurrency: int, work: Callable[[Talk], Awaitable[Any]]) -> list[Any]:
    """``work`` on every conversation, so many at a time; results in order."""
    results: list[Any] = [None] * len(talks)
    waiting = iter(enumerate(talks))

    async def worker() -> None:
        for index, talk in waiting:
            results[index] = await work(talk)

    await asyncio.gather(*[worker() for _ in range(concurrency)])
    return results


__all__ = ["GROUP", "Block", "Heard", "Load", "Stage", "growing", "repeated", "varied", "whole"]
