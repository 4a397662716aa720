"""A real rollout worker and a real weight receiver, small enough to live in the test's own process."""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from longrein.errors import WorkerError
from longrein.rollout.advantage import advantages
from longrein.types import Call, Completion, Rollout, RolloutGroup, Row
from tests.traces import TASK, call, rollout


def row(
    token_ids: Sequence[int], trained: Sequence[int], *, advantage: float = 1.0, rollout_id: str = "r", **changes: Any
) -> Row:
    """A row whose sampler said -1 for every trained position."""
    mask = np.zeros(len(token_ids), np.bool_)
    mask[list(trained)] = True
    fields: dict[str, Any] = {
        "logprobs": np.where(mask, -1.0, 0.0).astype(np.float32),
        "token_ids": np.asarray(token_ids, np.int32),
        "loss_mask": mask,
        "group_id": "g",
        **changes,
    }
    return Row(rollout_id=rollout_id, advantage=advantage, **fields)


def group(
    group_id: str, rewards: Sequence[float | None], calls: Callable[[int], list[Call]], **changes: Any
) -> RolloutGroup:
    """A group with rewards as given and advantages as the rollout worker would compute them."""
    rollouts: list[Rollout] = [
        rollout(f"{group_id}-{index}", calls(index), reward=reward, group_id=group_id)
        for index, reward in enumerate(rewards)
    ]
    return RolloutGroup(
        group_id=group_id,
        task=TASK,
        rollouts=changes.get("rollouts", tuple(rollouts)),
        rewards=tuple(rewards),
        advantages=changes.get("advantages", advantages(rewards, 1e-4)),
    )


class Script:
    """A rollout worker that hands out groups from a list and remembers what it was told."""

    def __init__(self, groups: Sequence[RolloutGroup] | Callable[[int], RolloutGroup], dies: str = "") -> None:
        self._made = 0
        self._groups = groups
        self._dies = dies
        self.versions: list[int] = []
        self.started = self.stopped = 0
        self.resumed: list[tuple[tuple[str, ...], int]] = []
        self.metrics_queue: queue.Queue[Mapping[str, float]] = queue.Queue()

    @property
    def rollout_buffer(self) -> Script:
        return self

    def get(self, *, timeout: float) -> RolloutGroup:
        self._made += 1
        if callable(self._groups):
            return self._groups(self._made - 1)
        if self._dies:
            raise queue.Empty
        return self._groups[self._made - 1]

    @property
    def taken(self) -> int:
        return self._made

    def resume(self, taken: Collection[str], policy_version: int, /) -> None:
        self.resumed.append((tuple(taken), policy_version))

    def start(self) -> None:
        self.started += 1

    def stop(self) -> None:
        self.stopped += 1

    def update_model_version(self, version: int, /) -> None:
        self.versions.append(version)

    def check_health(self) -> None:
        if self._dies:
            raise WorkerError(self._dies)


class Recorder:
    """A weight receiver that keeps what it was sent; what training begins with, apart."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Tensor]] = []
        self.versions: list[int] = []
        self.sent: list[dict[str, Tensor]] = []

    def update(self, tensors: object, policy_version: int) -> None:
        assert isinstance(tensors, Mapping)
        copied = {name: tensor.clone() for name, tensor in tensors.items()}
        if policy_version == 0:
            self.begun.append(copied)
            return
        self.versions.append(policy_version)
        self.sent.append(copied)


class Sampler:
    """Worker and receiver in one: samples short completions from its own copy of the model being trained."""

    def __init__(self, folder: str, reward: Callable[[np.ndarray], float], num_generations: int, length: int) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder)
        self._model.eval()
        self._reward = reward
        self._num_generations = num_generations
        self._length = length
        self._generator = torch.Generator().manual_seed(0)
        self._made = 0
        self.version = 0
        self.metrics_queue: queue.Queue[Mapping[str, float]] = queue.Queue()

    @property
    def rollout_buffer(self) -> Sampler:
        return self

    def resume(self, taken: Collection[str], policy_version: int, /) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def check_health(self) -> None: ...

    def update_model_version(self, version: int, /) -> None:
        assert version == self.version

    def update(self, tensors: object, policy_version: int) -> None:
        assert isinstance(tensors, Mapping)
        parameters = dict(self._model.named_parameters())
        assert parameters.keys() == tensors.keys()
        with torch.no_grad():
            for name, tensor in tensors.items():
                parameters[name].copy_(tensor)
        self.version = policy_version

    @torch.no_grad()
    def get(self, *, timeout: float) -> RolloutGroup:
        self._made += 1
        ids = torch.full((self._num_generations, 1), 5)
        logprobs: list[Tensor] = []
        for _ in range(self._length):
            step = torch.log_softmax(self._model(input_ids=ids, use_cache=False).logits[:, -1], -1)
            sampled = torch.multinomial(step.exp(), 1, generator=self._generator)
            logprobs.append(step.gather(-1, sampled))
            ids = torch.cat([ids, sampled], 1)
        sampled_ids, sampled_logprobs = ids[:, 1:].numpy(), torch.cat(logprobs, 1).numpy()
        rewards = [self._reward(line) for line in sampled_ids]

        def calls(index: int) -> list[Call]:
            base = call(0, None, [5], sampled_ids[index].tolist())
            completion = Completion(
                token_ids=sampled_ids[index].astype(np.int32),
                logprobs=sampled_logprobs[index],
                finish_reason="length",
                min_policy_version=self.version,
                max_policy_version=self.version,
            )
            fields = {name: getattr(base, name) for name in base.__struct_fields__}
            return [Call(**{**fields, "completion": completion})]

        return group(f"g{self._made}", rewards, calls)
