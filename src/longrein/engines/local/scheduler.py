"""Continuous batching: requests join and leave between forward passes.

A pass decodes one token for each running row and prefills pieces of the prompts that wait, within a budget, so that a
long one does not hold up the others for long. A request starts from the longest prefix whose KV is known: of its own
conversation, or in blocks that it shares with others (:mod:`.prefix`).

A row carries the *epoch* its KV was computed in, and only KV of the present one is kept for later. With ``recompute``
each change of weights starts a new epoch; with ``keep`` there is only one.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from itertools import islice

import numpy as np
import torch

from longrein.engines.local import wire
from longrein.engines.local.admission import admit
from longrein.engines.local.answers import Answer, Answers
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.decoding import Decoding
from longrein.engines.local.kv import KvMemory, capacity_for
from longrein.engines.local.leaving import empty, keep
from longrein.engines.local.model import LocalModel
from longrein.engines.local.prefill import Prefill
from longrein.engines.local.prefix import BLOCK_TOKENS, PrefixStore
from longrein.engines.local.reports import Report, Reports
from longrein.engines.local.row import Job, Row, Ticket
from longrein.engines.local.sample import Sampled, sample
from longrein.engines.local.shortage import ShortageError, shortage
from longrein.engines.local.stops import StopRule

PREFILL_TOKENS_BESIDE_DECODING = 128
PREFILL_TOKENS_ALONE = 512
MOST_PREFILLING = 8
"""Prompts in progress at once: a group's siblings. More would only hold memory."""


class Scheduler:
    """The batch. One thread calls it; nothing in it blocks on anything but the model."""

    def __init__(self, model: LocalModel, config: LocalEngineConfig) -> None:
        self._model = model
        self._config = config
        self._policy_version = 0
        self._epoch = 0
        self._seeds = np.random.SeedSequence(config.seed)
        self._waiting: deque[Job] = deque()
        self._store = PrefixStore(config.cache_tokens)
        self._kv = KvMemory(model.layout, config.batch_tokens)
        self._prefill = Prefill(self._kv, self._store)
        self._decoding = Decoding(self._kv)
        self._answers = Answers()
        self._reports = Reports()
        self._unfit = ""
        """Why nothing can be sampled until other weights come."""

    @property
    def idle(self) -> bool:
        """Nothing to compute."""
        return not self._begun and not self._waiting

    @property
    def begun(self) -> int:
        """Requests that have a row: the ones that decode and the ones whose prompt is being prefilled."""
        return len(self._begun)

    @property
    def kv_tokens(self) -> int:
        """Tokens for whose KV the batch has memory; what the prefix cache keeps is not counted."""
        return self._kv.tokens

    @property
    def _begun(self) -> list[Row]:
        return [*self._prefill.rows, *self._decoding.rows]

    def watch(self, ticket: Ticket) -> None:
        """Report the tokens of a request that is about to come."""
        self._reports.watch(ticket)

    def submit(self, ticket: Ticket, request: wire.Generate) -> None:
        """Queue a request, or answer it with a refusal."""
        job = admit(ticket, request, self._model.vocab_size, self._model.context_length)
        if isinstance(job, Job) and self._unfit:
            self._answers.fail(job, self._unfit)
        elif isinstance(job, Job):
            self._waiting.append(job)
        else:
            self._answers.give(ticket, job)

    @torch.inference_mode()
    def cancel(self, ticket: Ticket) -> None:
        """Drop a request; its row is free after the next step. Unknown tickets are ignored."""
        self._reports.end(ticket)
        self._waiting = deque(job for job in self._waiting if job.ticket != ticket)
        for row in [row for row in self._prefill.rows if row.job.ticket == ticket]:
            self._prefill.drop(row)
        for row in self._decoding.rows:
            if row.job.ticket == ticket:
                row.finished = True

    def disconnect(self, connection: int) -> None:
        """Drop all requests of a connection."""
        for job in [*self._waiting, *(row.job for row in self._begun)]:
            if job.ticket.connection == connection:
                self.cancel(job.ticket)

    def forget(self, conversation_id: str) -> None:
        """Free the KV of a conversation, that of a running request when it ends."""
        self._store.forget(conversation_id)
        for row in self._begun:
            row.forgotten = row.forgotten or row.job.conversation_id == conversation_id

    def clear_cache(self) -> None:
        """Free the KV of all that does not run. Running requests go on with what they have."""
        self._store.clear()
        with torch.inference_mode():
            self._kv.drop_unused()

    @torch.inference_mode()
    def unfit(self, why: str) -> None:
        """The weights are half changed: sample nothing with them. A :meth:`swap` mends it."""
        self._unfit = why
        while (job := self._next_victim()) is not None:
            self._answers.fail(job, why)

    @torch.inference_mode()
    def swap(self, policy_version: int) -> None:
        """The model's weights have just changed. Running requests go on with the KV they have.

        Raises:
            ShortageError: memory ran out in the middle; see :meth:`unfit`.
        """
        with shortage():
            self._model.refresh()
        self._unfit = ""
        self._policy_version = policy_version
        if self._config.stale_cache == "recompute":
            self._epoch += 1
            self._store.clear()
        self._store.drop_blocks()
        # These have sampled nothing yet: they start over, so that all of them is of the new weights.
        for row in self._prefill.rows:
            row.restart(self._epoch, policy_version)
            self._prefill.resume(row)

    def take_reports(self) -> list[Report]:
        """Tokens that the last step sampled for the watched requests."""
        return self._reports.take(self._policy_version)

    def take_answers(self) -> list[Answer]:
        """Replies since the last call."""
        answers = self._answers.take()
        for answer in answers:
            self._reports.end(answer.ticket)
        return answers

    @torch.inference_mode()
    def step(self) -> None:
        """One pass: prefill what waits, within a budget, and sample one token for every running request.

        If memory runs out nothing has happened, but that there is more of it: the cache is empty, or a request refused.
        """
        try:
            with shortage():
                self._pass()
        except ShortageError as error:
            self._relieve(error)

    def _pass(self) -> None:
        # What ended is completed by itself if nothing else runs: whether the next request is here already must not
        # decide the shape of the pass, hence the last bits of what it computes.
        if not self._decoding.rows or any(not row.finished for row in self._decoding.rows):
            while self._start_next():
                pass
            pieces = self._prefill.pieces(self._prefill_budget())
            self._join()
        else:
            pieces = []
        if not self._decoding.rows and not pieces:
            return
        logits = self._model.forward.run(self._decoding.inputs(), [item.piece for item in pieces])
        self._prefill.computed(pieces)
        if self._decoding.rows:
            self._decoded(logits)

    def _relieve(self, error: ShortageError) -> None:
        cached = self._store.tokens
        self.clear_cache()
        if not cached and (job := self._next_victim()) is not None:
            self._answers.fail(
                job,
                f"{error} with {job.prompt_ids.size} tokens of prompt beside {self.begun} other requests; lower "
                "max_batch, batch_tokens or the context length",
            )

    def _next_victim(self) -> Job | None:
        """Let go of the largest request that has begun, or else of the oldest."""
        if not self.begun:
            return self._waiting.popleft() if self._waiting else None
        row = max(self._begun, key=lambda row: row.size)
        if row in self._decoding.rows:
            self._decoding.remove(row)
        else:
            self._prefill.drop(row)
        # Of one that has ended only the last token's KV was missing.
        return self._next_victim() if row.finished else row.job

    def _prefill_budget(self) -> int:
        if self.begun == 1:
            # Alone, a prompt is computed block by block: the same bits, whatever was cached.
            return BLOCK_TOKENS
        return PREFILL_TOKENS_BESIDE_DECODING if self._decoding.rows else PREFILL_TOKENS_ALONE

    def _start_next(self) -> bool:
        """Whether a waiting request got a row."""
        # A conversation's next turn waits the one step in which its last token gets its KV.
        ending = {row.job.conversation_id for row in self._decoding.rows if row.finished}
        job = next((job for job in self._waiting if job.conversation_id not in ending), None)
        if job is None or not self._has_room(job):
            return False
        try:
            with shortage():
                likely = islice(self._waiting, MOST_PREFILLING - len(self._prefill.rows))
                self._prefill.slabs.expect(one.prompt_ids.size for one in likely)
                place = self._prefill.slabs.take(job.prompt_ids.size)
        except ShortageError:
            if not self.begun:
                raise
            # Others end, and it begins then.
            return False
        self._waiting.remove(job)
        seed = job.sampling.seed
        rng = np.random.default_rng(seed if seed is not None else self._seeds.spawn(1)[0])
        row = Row(job, StopRule(job.sampling, self._model.tokenizer), rng, place)
        row.restart(self._epoch, self._policy_version)
        self._prefill.begin(row)
        return True

    def _has_room(self, job: Job) -> bool:
        jobs = [*(row.job for row in self._begun), job]
        tokens = sum(capacity_for(one.most_tokens) for one in jobs)
        fits = len(jobs) <= self._config.max_batch and tokens <= self._config.batch_tokens
        return not self.begun or (fits and len(self._prefill.rows) < MOST_PREFILLING)

    def _join(self) -> None:
        """Rows whose prompt has its KV decode from now on."""
        complete = self._prefill.complete
        self._decoding.expect(complete)
        for row in complete:
            place = self._decoding.place_for(row)
            self._prefill.drop(row)
            self._decoding.join(row, place)

    def _decoded(self, logits: torch.Tensor) -> None:
        decoding = self._decoding.rows
        live = [index for index, row in enumerate(decoding) if not row.finished]
        # Its last token's KV is as little worth as its logits, though nothing is sampled from them.
        ill = [row for index, row in enumerate(decoding) if row.finished and not logits[index].isfinite().all()]
        rows = [decoding[index] for index in live]
        sampled = _sampled(logits if len(live) == len(decoding) else logits[live], rows) if live else None
        # From here on nothing takes memory.
        self._decoding.computed()
        for row in ill:
            empty(row)
        if sampled is not None:
            self._take(sampled, rows)
        gone = [row for row in decoding if row.finished and (row.cached == row.size or not self._worth_keeping(row))]
        for row in gone:
            self._leave(row)

    def _take(self, sampled: Sampled, rows: list[Row]) -> None:
        for row, token_id, logprob in zip(rows, sampled.token_ids.tolist(), sampled.logprobs.tolist(), strict=True):
            if not np.isfinite(logprob):
                self._fail(row)
                continue
            reason = row.append(token_id, logprob, self._policy_version)
            self._reports.add(row.job.ticket, token_id, logprob)
            if reason is not None:
                row.finished = True
                self._answers.give(row.job.ticket, row.done(reason))

    def _fail(self, row: Row) -> None:
        row.finished = True
        empty(row)
        # What such weights computed may have been shared already, or lie where a row that moved has its rest.
        self._store.clear()
        for other in self._decoding.rows:
            other.place.clear_rest()
        self._answers.fail(
            row.job,
            f"the model's logits are not finite (policy version {self._policy_version}); have its weights diverged?",
        )

    def _worth_keeping(self, row: Row) -> bool:
        return row.epoch == self._epoch and not row.forgotten and row.size <= self._config.cache_tokens

    def _leave(self, row: Row) -> None:
        if self._worth_keeping(row):
            # Where there is no memory for it, it is not kept.
            with suppress(ShortageError), shortage():
                keep(row, self._store)
        self._decoding.remove(row)


def _sampled(logits: torch.Tensor, rows: list[Row]) -> Sampled:
    uniforms = np.array([row.uniform for row in rows], dtype=np.float32)
    return sample(logits, [row.job.sampling for row in rows], uniforms)
