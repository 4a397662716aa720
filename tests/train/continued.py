"""Runs that can be stopped, killed and resumed, in a process of their own or not."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from longrein.train.checkpoint import last_checkpoint
from longrein.train.grpo_config import AsyncGRPOConfig
from longrein.train.trainer import AsyncGRPOTrainer
from longrein.types import RolloutGroup
from tests.train.toy import Sampler

STEPS = 3


def even_share(ids: np.ndarray) -> float:
    return float(np.mean(ids % 2 == 0))


class SeededSampler(Sampler):
    """One group after the other, each sampled with a seed of its own number."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, even_share, num_generations=4, length=4)
        self.given: list[str] = []

    def resume(self, taken: Collection[str], policy_version: int, /) -> None:
        assert self.version <= policy_version
        self._made = len(taken)

    def get(self, *, timeout: float) -> RolloutGroup:
        self._generator.manual_seed(self._made)
        group = super().get(timeout=timeout)
        self.given.append(group.group_id)
        return group


class Draws(TrainerCallback):
    """Draws from every source of randomness at each step."""

    def __init__(self) -> None:
        self.drawn: list[tuple[float, float, float]] = []

    def on_step_begin(self, *_args: Any, **_kwargs: Any) -> None:
        self.drawn.append((random.random(), float(np.random.rand()), float(torch.rand(1))))


class StopAt(TrainerCallback):
    """Ends the process's training as an error would, once a step is over and saved."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        if state.global_step == self._step:
            raise InterruptedError


def arguments(out: Path, **changes: Any) -> AsyncGRPOConfig:
    fields: dict[str, Any] = {
        "output_dir": str(out),
        "use_cpu": True,
        "save_strategy": "steps",
        "save_steps": 1,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "linear",
        "max_steps": STEPS,
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        "max_staleness": 0,
        **changes,
    }
    return AsyncGRPOConfig(**fields)


def trainer(
    folder: Path, out: Path, *callbacks: TrainerCallback, peft_config: Any = None, **changes: Any
) -> AsyncGRPOTrainer:
    worker = SeededSampler(str(folder))
    return AsyncGRPOTrainer(
        model=str(folder),
        args=arguments(out, **changes),
        rollout_worker=worker,
        weight_receiver=worker,
        train_dataset=[0] * 2,
        callbacks=callbacks,
        peft_config=peft_config,
    )


def digest(made: AsyncGRPOTrainer) -> str:
    """Of every bit of the weights."""
    sha = hashlib.sha256()
    for parameter in made.model.parameters():
        sha.update(parameter.detach().numpy().tobytes())
    return sha.hexdigest()


def whole_run(folder: Path, out: Path, peft_config: Any = None) -> str:
    """From the start, or from the last checkpoint there is; returns the digest of its final weights."""
    made = trainer(folder, out, save_total_limit=2, peft_config=peft_config)
    made.train(resume_from_checkpoint=last_checkpoint(out) is not None)
    return digest(made)


def killed_at(event: int, folder: Path, out: Path, peft_config: Any = None) -> None:
    """A run whose process is killed just before the ``event``-th time that it opens, renames or removes a file."""
    seen = 0

    def kill(name: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if name in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree") and str(out) in str(
            args[0]
        ):
            seen += 1
            if seen == event:
                os.kill(os.getpid(), signal.SIGKILL)

    made = trainer(folder, out, save_total_limit=2, peft_config=peft_config)
    sys.addaudithook(kill)
    made.train()


def _report(target: Callable[..., Any], arguments: tuple[Any, ...], answers: Any) -> None:
    torch.set_num_threads(1)
    answers.send(target(*arguments))


def in_process(target: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    """What a function returned in a process of its own (``None`` if it was killed), and the exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.train.continued"])
    answers, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(target, arguments, theirs))
    process.start()
    theirs.close()
    try:
        answer = answers.recv()
    except EOFError:
        answer = None
    process.join()
    assert process.exitcode is not None
    return answer, process.exitcode
