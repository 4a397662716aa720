"""The trainer's view of a completion, and a scheduler driven to its end in this process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from longrein.engines.base import EngineRequest
from longrein.engines.local import wire
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.model import LocalModel
from longrein.engines.local.row import Ticket
from longrein.engines.local.scheduler import Scheduler
from longrein.types import F32, I32, Completion, Sampling


def ids(values: Sequence[int] | range | np.ndarray) -> I32:
    return np.asarray(values, dtype=np.int32)


def random_ids(seed: int, size: int) -> I32:
    return np.random.default_rng(seed).integers(0, 264, size, dtype=np.int32)


def request(
    name: str, prompt: I32, *, max_tokens: int = 8, temperature: float = 1.0, seed: int | None = 0, **more: object
) -> EngineRequest:
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, seed=seed, **more)
    return EngineRequest(request_id=name, conversation_id=name, prompt_ids=prompt, sampling=sampling)


@torch.no_grad()
def forward_logprobs(module: torch.nn.Module, prompt: I32, completion: I32, temperature: float = 1.0) -> F32:
    """Plain full-sequence forward, no cache: log_softmax(logits / temperature), gathered."""
    sequence = torch.as_tensor(np.concatenate([prompt, completion]).astype(np.int64))[None]
    logits = module(input_ids=sequence, use_cache=False).logits[0, prompt.size - 1 : -1].float()
    picked = torch.as_tensor(completion.astype(np.int64))[:, None]
    return torch.log_softmax(logits / temperature, dim=-1).gather(1, picked)[:, 0].numpy()


class Driver:
    """A real scheduler, stepped by hand."""

    def __init__(self, model: LocalModel, **config: object) -> None:
        self.model = model
        self.scheduler = Scheduler(model, LocalEngineConfig(model="in this process", **config))
        self._calls = 0

    def submit(self, wanted: EngineRequest) -> Ticket:
        ticket = Ticket(connection=0, call=self._calls)
        self._calls += 1
        self.scheduler.submit(
            ticket,
            wire.Generate(
                call=ticket.call,
                conversation_id=wanted.conversation_id,
                prompt=wanted.prompt_ids.tobytes(),
                sampling=wanted.sampling,
            ),
        )
        return ticket

    def finish(self) -> dict[Ticket, wire.Reply]:
        """Step until nothing is left to compute."""
        while not self.scheduler.idle:
            self.scheduler.step()
        return {answer.ticket: answer.reply for answer in self.scheduler.take_answers()}

    def run(self, *wanted: EngineRequest) -> list[Completion]:
        """Sample all, together."""
        tickets = [self.submit(one) for one in wanted]
        replies = self.finish()
        return [completion(replies[ticket]) for ticket in tickets]


def completion(reply: wire.Reply) -> Completion:
    assert isinstance(reply, wire.Done), reply
    return Completion(
        token_ids=np.frombuffer(reply.token_ids, dtype=np.int32),
        logprobs=np.frombuffer(reply.logprobs, dtype=np.float32),
        finish_reason=reply.finish_reason,
        min_policy_version=reply.min_policy_version,
        max_policy_version=reply.max_policy_version,
        prefill_tokens=reply.prefill_tokens,
    )
