"""One running request: its tokens, how many of them have KV, and what was sampled."""

from __future__ import annotations

import msgspec
import numpy as np

from longrein.engines.local import wire
from longrein.engines.local.kv import Place
from longrein.engines.local.prefix import BLOCK_TOKENS, ROOT, Span
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

    @property
    def most_tokens(self) -> int:
        """Tokens of prompt and completion at most."""
        return self.prompt_ids.size + self.max_tokens


class Row:
    """A job in the batch.

    Once its prompt is prefilled, a row lacks the KV of exactly its last token between two passes, so one pass serves
    fresh prompts, running completions, and completions that ended (whose last token the next turn will not have to
    prefill).
    """

    def __init__(self, job: Job, stop: StopRule, rng: np.random.Generator, place: Place) -> None:
        self.job = job
        self.place = place
        self.size = job.prompt_ids.size
        """Tokens in all."""
        self.prefill_tokens = 0
        self.max_policy_version = 0
        self.finished = False
        self.forgotten = False
        self._stop = stop
        self._rng = rng
        self.uniform = self._draw()
        """The number that its next token is drawn with: a pass that is made again draws it with the same."""
        self._tokens: I32 = np.empty(job.prompt_ids.size + job.max_tokens, dtype=np.int32)
        self._tokens[: job.prompt_ids.size] = job.prompt_ids
        self._logprobs: F32 = np.empty(job.max_tokens, dtype=np.float32)
        self.restart(0, 0)

    def restart(self, epoch: int, policy_version: int) -> None:
        """Have no KV yet; what is computed from now on is of these weights."""
        self.epoch = epoch
        """Weights under which all its KV was computed; see the scheduler."""
        self.kv_version = policy_version
        """Oldest policy version that computed any of its KV."""
        self.cached = 0
        """Tokens whose KV is in the row."""
        self.spans: list[Span] = []
        """KV in the prefix cache of its first tokens."""
        self.block = ROOT
        """The last of its blocks in the prefix cache."""
        self.block_tokens = 0
        """Tokens at its start that lie in blocks."""
        self.kept_tokens = 0
        """Tokens that ``spans`` cover."""

    @property
    def token_ids(self) -> I32:
        """All tokens so far, int32 ``[size]``."""
        return self._tokens[: self.size]

    @property
    def cached_ids(self) -> I32:
        """The tokens whose KV is in the row, int32 ``[cached]``."""
        return self._tokens[: self.cached]

    @property
    def prefill_end(self) -> int:
        """Prompt tokens that are prefilled; the last one is decoded, for its logits."""
        return self.job.prompt_ids.size - 1

    @property
    def in_blocks(self) -> bool:
        """Whether all its KV so far lies in whole blocks, so that more may follow."""
        return self.cached == self.block_tokens and self.cached % BLOCK_TOKENS == 0

    @property
    def completion_ids(self) -> I32:
        """The sampled tokens, int32 ``[n]``."""
        return self._tokens[self.job.prompt_ids.size : self.size]

    @property
    def logprobs(self) -> F32:
        """The sampled tokens' logprobs, float32 ``[n]``."""
        return self._logprobs[: self.size - self.job.prompt_ids.size]

    def append(self, token_id: int, logprob: float, policy_version: int) -> FinishReason | None:
        """Add a sampled token; returns why the completion ends with it, if it does."""
        sampled = self.size - self.job.prompt_ids.size
        self._tokens[self.size] = token_id
        self._logprobs[sampled] = logprob
        self.size += 1
        self.max_policy_version = policy_version
        self.uniform = self._draw()
        if self._stop.ends(self.completion_ids):
            return "stop"
        return "length" if sampled + 1 == self.job.max_tokens else None

    def done(self, finish_reason: FinishReason) -> wire.Done:
        """The reply that tells its completion."""
        return wire.Done(
            call=self.job.ticket.call,
            token_ids=self.completion_ids.tobytes(),
            logprobs=self.logprobs.tobytes(),
            finish_reason=finish_reason,
            # A token that looks back on older weights' KV counts as theirs too.
            min_policy_version=self.kv_version,
            max_policy_version=self.max_policy_version,
            prefill_tokens=self.prefill_tokens,
        )

    def _draw(self) -> float:
        # float32 here: a float64 just below 1 would round up to it.
        return float(self._rng.random(dtype=np.float32))
