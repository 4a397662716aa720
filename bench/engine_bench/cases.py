"""What they are given to do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from engine_bench.contenders import Call, Contender
from longrein.types import I32

_VOCABULARY = 8000
"""Prompts are random ids below this, which every model here has."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Sampled tokens a second, and a CPU second; ``seconds`` of the timed part."""

    tokens_per_s: float
    tokens_per_cpu_s: float
    seconds: float


class Case(Protocol):
    """One cell of the table. ``round_number`` makes prompts that nobody has cached."""

    most_rounds: int
    grows: bool
    """Whether prompts extend earlier ones, so that a prefix cache is worth something."""

    @property
    def name(self) -> str:
        """What the table calls it."""
        ...

    def measure(self, contender: Contender, round_number: int) -> Measured:
        """Run it once."""
        ...


class Decode(msgspec.Struct, frozen=True, kw_only=True):
    """Decoding alone: many tokens less one token, of the same prompts, over what is sampled more."""

    workload: str
    context: int
    concurrent: int
    tokens: int
    most_rounds: int = 9
    grows: bool = False

    @property
    def name(self) -> str:
        return f"{self.workload} x{self.concurrent}"

    def measure(self, contender: Contender, round_number: int) -> Measured:
        random = np.random.default_rng([round_number, self.context, self.concurrent])
        prompts = [_random_ids(random, self.context) for _ in range(self.concurrent)]
        names = [f"{self.name} {round_number} {index}" for index in range(self.concurrent)]
        if contender.caches_prefixes:
            # From here on it has these prompts, and (with them known, all decode at once) memory for as many rows.
            for tokens in (1, 1 + self.tokens):
                _timed(contender, _calls(names, prompts, tokens))
        one = _timed(contender, _calls(names, prompts, 1))
        many = _timed(contender, _calls(names, prompts, 1 + self.tokens))
        return _rate(self.concurrent * self.tokens, many.wall_s - one.wall_s, many.cpu_s - one.cpu_s)


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A group of siblings: one prompt, then turns of sampled tokens and a tool's answer, all sessions at once."""

    sessions: int = 8
    prompt: int = 600
    turns: int = 10
    sampled: int = 40
    answered: int = 60
    most_rounds: int = 2
    grows: bool = True

    @property
    def name(self) -> str:
        return "turns"

    def measure(self, contender: Contender, round_number: int) -> Measured:
        random = np.random.default_rng([round_number, self.prompt])
        prompts = [_random_ids(random, self.prompt)] * self.sessions
        names = [f"{self.name} {round_number} {index}" for index in range(self.sessions)]
        wall_s, cpu_s = 0.0, 0.0
        for _ in range(self.turns):
            turn = _timed(contender, _calls(names, prompts, self.sampled))
            wall_s, cpu_s = wall_s + turn.wall_s, cpu_s + turn.cpu_s
            prompts = [
                np.concatenate([prompt, said, _random_ids(random, self.answered)])
                for prompt, said in zip(prompts, turn.said, strict=True)
            ]
        return _rate(self.sessions * self.turns * self.sampled, wall_s, cpu_s)


class _Timed(msgspec.Struct, frozen=True, kw_only=True):
    said: list[I32]
    wall_s: float
    cpu_s: float


def _timed(contender: Contender, calls: list[Call]) -> _Timed:
    wall, cpu = time.perf_counter(), contender.cpu_s()
    said = contender.sample(calls)
    timed = _Timed(said=said, wall_s=time.perf_counter() - wall, cpu_s=contender.cpu_s() - cpu)
    sizes = {ids.size for ids in said}
    if sizes != {calls[0].max_tokens}:
        raise SystemExit(
            f"{type(contender).__name__} sampled {sizes} tokens where {calls[0].max_tokens} were asked for"
        )
    return timed


def _rate(tokens: int, wall_s: float, cpu_s: float) -> Measured:
    # The kernel's clock ticks 100 times a second: a short run may show none.
    return Measured(tokens_per_s=tokens / max(wall_s, 1e-3), tokens_per_cpu_s=tokens / max(cpu_s, 1e-2), seconds=wall_s)


def _calls(names: list[str], prompts: list[I32], max_tokens: int) -> list[Call]:
    return [
        Call(conversation_id=name, prompt_ids=prompt, max_tokens=max_tokens)
        for name, prompt in zip(names, prompts, strict=True)
    ]


def _random_ids(random: np.random.Generator, size: int) -> I32:
    return random.integers(0, _VOCABULARY, size, dtype=np.int32)


def cases_of(workload: str, concurrency: Sequence[int]) -> list[Case]:
    """The cells of one workload; none of a workload that is measured elsewhere."""
    match workload:
        case "150":
            return [Decode(workload="150", context=150, concurrent=number, tokens=64) for number in concurrency]
        case "4k":
            # Minutes a round where nobody keeps the prompts.
            return [
                Decode(workload="4k", context=3960, concurrent=number, tokens=128, most_rounds=3 if number < 8 else 1)
                for number in concurrency
            ]
        case "turns":
            return [Conversation()]
        case _:
            return []


QUICK: list[Case] = [
    Decode(workload="150", context=150, concurrent=4, tokens=16),
    Conversation(sessions=3, prompt=100, turns=2),
]
