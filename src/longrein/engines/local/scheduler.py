"""Continuous batching: requests join and leave between decode steps.

Rows ``0..n-1`` of the KV decode together. At most one request at a time is being prefilled, in row ``n``, in
pieces, so that a long prompt does not hold up the others for long. A request starts from the longest prefix whose
KV is known: of its own conversation, of another one, or of a running one (a group's siblings share their prompt).

All KV carries the *epoch* it was computed in. Only KV of the present epoch is reused. With ``recompute`` each
change of weights starts a new epoch; with ``reuse`` there is only one.
"""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np
import torch

from longrein.engines.local import wire
from longrein.engines.local.admission import admit
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.model import LocalModel
from longrein.engines.local.prefix import Parked, PrefixStore, common_prefix
from longrein.engines.local.row import Job, Row, Ticket
from longrein.engines.local.sample import sample
from longrein.engines.local.stops import StopRule

PREFILL_TOKENS_PER_STEP = 512


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A reply and whose it is."""

    ticket: Ticket
    reply: wire.Reply


class Scheduler:
    """The batch. One thread calls it; nothing in it blocks on anything but the model."""

    def __init__(self, model: LocalModel, config: LocalEngineConfig) -> None:
        self._model = model
        self._config = config
        self._policy_version = 0
        self._epoch = 0
        self._seeds = np.random.SeedSequence(config.seed)
        self._waiting: deque[Job] = deque()
        self._joining: Row | None = None
        self._rows: list[Row] = []
        self._parked = PrefixStore(config.cache_tokens)
        self._answers: list[Answer] = []

    @property
    def idle(self) -> bool:
        """Nothing to compute."""
        return not self._rows and self._joining is None and not self._waiting

    def submit(self, ticket: Ticket, request: wire.Generate) -> None:
        """Queue a request, or answer it with a refusal."""
        job = admit(ticket, request, self._model.vocab_size, self._model.context_length)
        if isinstance(job, Job):
            self._waiting.append(job)
        else:
            self._answers.append(Answer(ticket=ticket, reply=job))

    def cancel(self, ticket: Ticket) -> None:
        """Drop a request; its row is free after the next step. Unknown tickets are ignored."""
        self._waiting = deque(job for job in self._waiting if job.ticket != ticket)
        if self._joining is not None and self._joining.job.ticket == ticket:
            self._joining = None
        for row in self._rows:
            if row.job.ticket == ticket:
                row.finished = True

    def disconnect(self, connection: int) -> None:
        """Drop all requests of a connection."""
        running = [row.job for row in self._rows]
        joining = [self._joining.job] if self._joining is not None else []
        for job in [*self._waiting, *joining, *running]:
            if job.ticket.connection == connection:
                self.cancel(job.ticket)

    def forget(self, conversation_id: str) -> None:
        """Free the KV of a conversation, that of a running request when it ends."""
        self._parked.forget(conversation_id)
        for row in self._rows:
            row.forgotten = row.forgotten or row.job.conversation_id == conversation_id

    def swap(self, policy_version: int) -> None:
        """The model's weights have just changed. Running requests go on with the KV they have."""
        self._policy_version = policy_version
        if self._config.stale_cache == "reuse":
            return
        self._epoch += 1
        self._parked.clear()
        if self._joining is not None:
            # It has sampled nothing yet: start over, so that all of it is of the new weights.
            self._joining.cached = 0
            self._joining.epoch = self._epoch

    def take_answers(self) -> list[Answer]:
        """Replies since the last call."""
        answers, self._answers = self._answers, []
        return answers

    @torch.inference_mode()
    def step(self) -> None:
        """Prefill what waits, within a budget, then sample one token for every running request."""
        budget = PREFILL_TOKENS_PER_STEP
        while budget > 0 and self._start_next():
            budget -= self._prefill(budget)
        if self._rows:
            self._decode()

    def _start_next(self) -> bool:
        """Whether there is a row to prefill, the one begun before or the next request's."""
        if self._joining is not None:
            return True
        if len(self._rows) >= self._config.max_batch:
            return False
        # A conversation's next turn waits the one step in which its last token gets its KV.
        ending = {row.job.conversation_id for row in self._rows if row.finished}
        job = next((job for job in self._waiting if job.conversation_id not in ending), None)
        if job is None:
            return False
        self._waiting.remove(job)
        self._joining = self._new_row(job)
        return True

    def _new_row(self, job: Job) -> Row:
        seed = job.sampling.seed
        rng = np.random.default_rng(seed if seed is not None else self._seeds.spawn(1)[0])
        row = Row(job, StopRule(job.sampling, self._model.tokenizer), rng, self._epoch)
        index = len(self._rows)
        self._model.rows.reserve(index + 1, row.size)
        row.cached = self._load_prefix(index, row)
        return row

    def _load_prefix(self, index: int, row: Row) -> int:
        """Copy the longest known prefix into row ``index``; returns its length. The last token is always computed."""
        prompt = row.job.prompt_ids[:-1]
        parked = max(self._parked, key=lambda entry: common_prefix(entry.token_ids, prompt), default=None)
        parked_length = common_prefix(parked.token_ids, prompt) if parked is not None else 0
        running_lengths = [
            common_prefix(other.cached_ids, prompt) if other.epoch == self._epoch else 0 for other in self._rows
        ]
        running_length = max(running_lengths, default=0)
        if parked is not None and parked_length >= max(running_length, 1):
            self._model.rows.load(index, parked.kv, parked_length)
            self._parked.touch(parked)
            return parked_length
        if running_length:
            self._model.rows.copy(running_lengths.index(running_length), index, running_length)
        return running_length

    def _prefill(self, budget: int) -> int:
        """Compute up to ``budget`` tokens of the joining row; returns how many. Complete but for one, it joins."""
        row = self._joining
        assert row is not None
        last = row.job.prompt_ids.size - 1
        piece = row.token_ids[row.cached : min(last, row.cached + budget)]
        if piece.size:
            self._model.prefill(len(self._rows), piece, row.cached)
        row.cached += piece.size
        row.prefill_tokens += piece.size
        if row.cached == last:
            row.prefill_tokens += 1
            self._rows.append(row)
            self._joining = None
        return piece.size

    def _decode(self) -> None:
        positions = np.array([row.cached for row in self._rows], dtype=np.int64)
        token_ids = np.array([row.token_ids[-1] for row in self._rows], dtype=np.int32)
        self._model.rows.reserve(len(self._rows), int(positions.max()) + 1)
        logits = self._model.decode(token_ids, positions)
        for row in self._rows:
            row.cached += 1
        live = [index for index, row in enumerate(self._rows) if not row.finished]
        if live:
            self._sample(logits if len(live) == len(self._rows) else logits[live], live)
        for index in reversed(range(len(self._rows))):
            row = self._rows[index]
            if row.finished and (row.cached == row.size or not self._worth_parking(row)):
                self._leave(index)

    def _sample(self, logits: torch.Tensor, live: list[int]) -> None:
        rows = [self._rows[index] for index in live]
        uniforms = np.array([row.draw() for row in rows], dtype=np.float32)
        sampled = sample(logits, [row.job.sampling for row in rows], uniforms)
        for index, row, token_id, logprob in zip(
            live, rows, sampled.token_ids.tolist(), sampled.logprobs.tolist(), strict=True
        ):
            if not np.isfinite(logprob):
                self._fail(index, row)
                continue
            reason = row.append(token_id, logprob, self._policy_version)
            if reason is not None:
                row.finished = True
                self._answers.append(
                    Answer(
                        ticket=row.job.ticket,
                        reply=wire.Done(
                            call=row.job.ticket.call,
                            token_ids=row.completion_ids.tobytes(),
                            logprobs=row.logprobs.tobytes(),
                            finish_reason=reason,
                            min_policy_version=row.min_policy_version,
                            max_policy_version=row.max_policy_version,
                            prefill_tokens=row.prefill_tokens,
                        ),
                    )
                )

    def _fail(self, index: int, row: Row) -> None:
        row.finished = row.forgotten = True
        self._model.rows.clear(index)
        message = (
            f"the model's logits are not finite (policy version {self._policy_version}); have its weights diverged?"
        )
        self._answers.append(
            Answer(ticket=row.job.ticket, reply=wire.Failed(call=row.job.ticket.call, message=message))
        )

    def _worth_parking(self, row: Row) -> bool:
        return row.epoch == self._epoch and not row.forgotten and row.size <= self._config.cache_tokens

    def _leave(self, index: int) -> None:
        row = self._rows[index]
        if self._worth_parking(row):
            kv = self._model.rows.save(index, row.cached)
            self._parked.put(Parked(conversation_id=row.job.conversation_id, token_ids=row.cached_ids.copy(), kv=kv))
        last = len(self._rows) - 1
        if index != last:
            self._model.rows.copy(last, index, self._rows[last].cached)
            self._rows[index] = self._rows[last]
        self._rows.pop()
        if self._joining is not None:
            self._model.rows.copy(last + 1, last, self._joining.cached)
