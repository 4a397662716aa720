"""The table: payload x kind of conversation x streaming x concurrency, every server in turn, round after round."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import median

import msgspec

from gateway_bench.payloads import PAYLOADS, Payload, Root
from gateway_bench.process import ServerProcess
from gateway_bench.scenes import Block, Load, Stage, growing, repeated
from gateway_bench.servers import FLOOR, IN_PROCESS, IN_PROCESS_TOKENS, OURS

KINDS = {"growing": growing, "repeated": repeated}
CONCURRENCIES = (1, 16, 64)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the table."""

    payload: Payload
    kind: str
    concurrency: int
    stream: bool

    @property
    def name(self) -> str:
        streamed = " streamed" if self.stream else ""
        return f"{self.payload.name} {self.kind} x{self.concurrency}{streamed}"

    @property
    def load(self) -> Load:
        """Enough calls for a clock of microseconds, few enough for 64k-token prompts."""
        small = self.payload.prompt_tokens < 10_000
        sessions = max(self.concurrency, 8 if small else 4)
        return Load(concurrency=self.concurrency, sessions=sessions, steps=self.steps, stream=self.stream)

    @property
    def steps(self) -> int:
        """Measured calls of a session."""
        if self.payload.prompt_tokens > 10_000 and self.concurrency > 16:
            return 2
        return 6 if self.payload.completion_tokens < 1000 else 4

    @property
    def root_tokens(self) -> int:
        """So that the measured calls have the payload's number of prompt tokens, in the mean."""
        if self.kind == "repeated":
            return self.payload.prompt_tokens
        return int(self.payload.prompt_tokens - self.payload.step_tokens * (self.steps + 1) / 2)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One server in one cell."""

    cpu_ms: float
    """Median over rounds, a call."""
    close_ms: float
    """What of it is closing and writing."""
    latency_ms: float
    over_ours: float
    """Median of the rounds' ratios to Longrein's CPU."""


def main_cells(payloads: Sequence[Payload]) -> list[Cell]:
    """Cells that every server goes through."""
    cells = [
        Cell(payload=payload, kind=kind, concurrency=16 if payload.prompt_tokens < 10_000 else 8, stream=False)
        for payload in payloads
        for kind in KINDS
    ]
    first = PAYLOADS[0]
    return [
        *cells,
        Cell(payload=first, kind="growing", concurrency=16, stream=True),
        Cell(payload=first, kind="growing", concurrency=1, stream=False),
        Cell(payload=first, kind="growing", concurrency=64, stream=False),
    ]


def all_cells() -> list[Cell]:
    """The whole cross product, for Longrein and the floor."""
    return [
        Cell(payload=payload, kind=kind, concurrency=concurrency, stream=stream)
        for payload in PAYLOADS
        for kind in KINDS
        for stream in (False, True)
        for concurrency in CONCURRENCIES
    ]


class Table:
    """Runs cells and keeps what came of them."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._roots: dict[str, Root] = {}
        self.measured: dict[str, dict[str, Measured]] = {}
        """Cell name -> server name -> medians."""

    def root(self, cell: Cell) -> Root:
        """The first prompt of a cell's conversations, made once."""
        name = f"{cell.payload.name} {cell.root_tokens}"
        if name not in self._roots:
            self._roots[name] = self._stage.speaker.root(cell.payload, cell.root_tokens)
        return self._roots[name]

    async def warm_up(self, servers: Sequence[ServerProcess]) -> None:
        """What is loaded on first use is no call's cost."""
        cell = Cell(payload=PAYLOADS[0], kind="growing", concurrency=4, stream=False)
        root = self.root(cell)
        await self._stage.can(cell.payload, root)
        for server in servers:
            for stream in (False, True):
                await growing(server, self._stage, root, msgspec.structs.replace(cell.load, stream=stream))

    async def run(self, cells: Sequence[Cell], servers: Sequence[ServerProcess], rounds: int) -> None:
        """Every cell ``rounds`` times, servers taking turns inside a round."""
        for cell in cells:
            root = self.root(cell)
            await self._stage.can(cell.payload, root)
            short = cell.payload.completion_tokens == IN_PROCESS_TOKENS
            fit = [server for server in servers if short or server.name != IN_PROCESS]
            blocks: dict[str, list[Block]] = {server.name: [] for server in fit}
            for at in range(rounds):
                for server in [*fit[at % len(fit) :], *fit[: at % len(fit)]]:
                    block = await KINDS[cell.kind](server, self._stage, root, cell.load)
                    _check(server.name, cell, block)
                    blocks[server.name].append(block)
            self.measured[cell.name] = {name: _medians(blocks[name], blocks[OURS]) for name in blocks}
            _progress(cell.name, self.measured[cell.name])


def _medians(blocks: list[Block], ours: list[Block]) -> Measured:
    return Measured(
        cpu_ms=median(block.cpu_ms for block in blocks),
        close_ms=median(block.close_ms for block in blocks),
        latency_ms=median(block.latency_ms for block in blocks),
        over_ours=median(block.cpu_ms / our.cpu_ms for block, our in zip(blocks, ours, strict=True)),
    )


def _check(name: str, cell: Cell, block: Block) -> None:
    """A server that captured less than was asked is not compared."""
    if name == FLOOR:
        return
    load, captured = cell.load, block.captured
    calls = load.sessions * (load.steps + 1)
    roots = load.sessions if cell.kind == "growing" else calls
    if captured["faults"] or captured["turns"] != calls or captured.get("roots", roots) != roots:
        raise SystemExit(f"{name}, {cell.name}: {calls} calls with {roots} roots were asked, captured: {captured}")


def _progress(name: str, measured: dict[str, Measured]) -> None:
    costs = "  ".join(f"{server} {one.cpu_ms:.2f}" for server, one in measured.items())
    print(f"{name:34s} CPU ms a call: {costs}", file=sys.stderr, flush=True)
