"""One running request: its tokens, how many of them have KV, and what was sampled."""

from __future__ import annotations

import msgspec
import numpy as np

from longrein.engines.local.stops import StopRule
from longrein.types import F32, I32, FinishReason, Sampling


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """Whose request it is: a connection of the server and the client's own number in it."""

    connection: int
    call: int


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request that waits for a row."""

    ticket: Ticket
    conversation_id: str
    prompt_ids: I32
    sampling: Sampling
    max_tokens: int
    """Of the sampling, clamped to the room that the prompt leaves in the context."""


class Row:
    """A job in the batch.

    Between decode steps every row lacks the KV of exactly its last token, so one step serves fresh prompts,
    running completions, and completions that ended (whose last token the next turn will not have to prefill).
    """

    def __init__(self, job: Job, stop: StopRule, rng: np.random.Generator, epoch: int) -> None:
        self.job = job
        self.epoch = epoch
        """Weights under which all its KV was computed; see the scheduler."""
        self.cached = 0
        """Tokens whose KV is in the row."""
        self.size = job.prompt_ids.size
        """Tokens in all."""
        self.prefill_tokens = 0
        self.min_policy_version = 0
        self.max_policy_version = 0
        self.finished = False
        self.forgotten = False
        self._stop = stop
        self._rng = rng
        self._tokens: I32 = np.empty(job.prompt_ids.size + job.max_tokens, dtype=np.int32)
        self._tokens[: job.prompt_ids.size] = job.prompt_ids
        self._logprobs: F32 = np.empty(job.max_tokens, dtype=np.float32)

    @property
    def token_ids(self) -> I32:
        """All tokens so far, int32 ``[size]``."""
        return self._tokens[: self.size]

    @property
    def cached_ids(self) -> I32:
        """The tokens whose KV is in the row, int32 ``[cached]``."""
        return self._tokens[: self.cached]

    @property
    def completion_ids(self) -> I32:
        """The sampled tokens, int32 ``[n]``."""
        return self._tokens[self.job.prompt_ids.size : self.size]

    @property
    def logprobs(self) -> F32:
        """The sampled tokens' logprobs, float32 ``[n]``."""
        return self._logprobs[: self.size - self.job.prompt_ids.size]

    def draw(self) -> float:
        """The next uniform number of this request's own stream."""
        # float32 here: a float64 just below 1 would round up to it.
        return float(self._rng.random(dtype=np.float32))

    def append(self, token_id: int, logprob: float, policy_version: int) -> FinishReason | None:
        """Add a sampled token; returns why the completion ends with it, if it does."""
        sampled = self.size - self.job.prompt_ids.size
        self._tokens[self.size] = token_id
        self._logprobs[sampled] = logprob
        self.size += 1
        if sampled == 0:
            self.min_policy_version = policy_version
        self.max_policy_version = policy_version
        if self._stop.ends(self.completion_ids):
            return "stop"
        return "length" if sampled + 1 == self.job.max_tokens else None
