"""Processes that compute gradients together, asked by the test's own process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from longrein.train.batch import share_step
from longrein.train.choose import policy_objective
from longrein.train.deal import Dealer
from longrein.train.gradient import WholeStep, add_gradient
from longrein.train.loss_choices import Aggregation
from longrein.train.packing import PlainPacking, TreePacking
from longrein.train.passes import Pass
from longrein.train.ranks import Ranks, ranks_here
from longrein.train.reference import NoPenalty
from longrein.train.score import scorer_for
from longrein.train.sharded import whole
from longrein.train.tree_cut import tree_cost
from longrein.types import Row
from tests.train.exact import exact_model
from tests.train.table import choices

Wrapper = Literal["bare", "ddp", "fsdp2"]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One step, and how it is computed."""

    rows: list[Row]
    wrapper: Wrapper
    changes: dict[str, Any]
    """To the choices about the loss."""
    aggregation: Aggregation = "token"
    tree: bool = True
    budget: int = 10_000
    checkpointing: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank has of it afterwards."""

    gradient: Any
    """Whole, flat, numpy."""
    loss: float
    measures: dict[str, float]
    own_tokens: int
    fed_tokens: int


class Workshop:
    """One rank's models."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._models: dict[str, nn.Module] = {}

    def model(self, wrapper: Wrapper) -> nn.Module:
        if wrapper not in self._models:
            bare = exact_model("smollm2", tie_word_embeddings=True)
            self._models[wrapper] = _wrapped(bare, wrapper)
        return self._models[wrapper]

    def answer(self, case: Case) -> Answer:
        model = self.model(case.wrapper)
        bare = cast(Any, model.module if isinstance(model, DistributedDataParallel) else model)
        if case.checkpointing:
            bare.activation_checkpointing_enable()
        else:
            bare.activation_checkpointing_disable()
        model.zero_grad()
        objective = policy_objective(choices(**case.changes), NoPenalty())
        shared = share_step(case.rows, case.aggregation)
        packing = TreePacking(case.budget, 48) if case.tree else PlainPacking(case.budget)
        dealt = Dealer(packing, tree_cost(48, case.budget), self._ranks.count).deal(shared)
        own = dealt[self._ranks.index].batches

        def around(turn: Pass) -> AbstractContextManager[object]:
            stack = ExitStack()
            if not turn.is_last and isinstance(model, DistributedDataParallel):
                stack.enter_context(model.no_sync())
            return stack

        totals = add_gradient(
            model,
            own,
            scorer=scorer_for(bare, 1.0),
            objective=objective,
            backward=lambda loss: loss.backward(),
            around=around,
            step=WholeStep(ranks=self._ranks, policy_version=0),
        )
        gradients = [whole(p.grad).flatten() for p in model.parameters() if p.grad is not None]
        return Answer(
            gradient=torch.cat(gradients).numpy(),
            loss=float(totals.loss),
            measures=totals.measures,
            own_tokens=sum(batch.input_ids.numel() for batch in own),
            fed_tokens=totals.fed_tokens,
        )


def _wrapped(bare: Any, wrapper: Wrapper) -> nn.Module:
    if wrapper == "ddp":
        return DistributedDataParallel(bare)
    if wrapper == "fsdp2":
        for layer in bare.model.layers:
            fully_shard(layer)
        fully_shard([bare.model.norm, bare.model.embed_tokens, bare.lm_head], reshard_after_forward=False)
        fully_shard(bare)
    return bare


class RankPool:
    """``count`` processes of one gloo group."""

    def __init__(self, connections: list[Connection]) -> None:
        self._connections = connections

    def answers(self, case: Case) -> list[Answer]:
        for connection in self._connections:
            connection.send(case)
        return [connection.recv() for connection in self._connections]


@contextmanager
def rank_pool(count: int, folder: Path) -> Generator[RankPool, None, None]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.train.rank_pool", "tests.train.continued"])
    pipes = [context.Pipe() for _ in range(count)]
    processes = [
        context.Process(target=_serve, args=(index, count, str(folder / "store"), theirs), daemon=True)
        for index, (_ours, theirs) in enumerate(pipes)
    ]
    for process, (_ours, theirs) in zip(processes, pipes, strict=True):
        process.start()
        theirs.close()
    try:
        yield RankPool([ours for ours, _theirs in pipes])
    finally:
        for ours, _theirs in pipes:
            ours.close()
        for process in processes:
            process.join()


def _serve(index: int, count: int, store: str, connection: Connection) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=index, world_size=count)
    workshop = Workshop(ranks_here(600.0))
    while True:
        try:
            case = connection.recv()
        except EOFError:
            break
        connection.send(workshop.answer(case))
    dist.destroy_process_group()
