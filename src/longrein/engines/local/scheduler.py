"""Continuous batching: requests join and leave between forward passes.

A pass decodes one token for each running row and prefills pieces of the prompts that wait, within a budget, so that a
long one does not hold up the others for long. A request starts from the longest prefix whose KV is known: of its own
conversation, or in blocks that it shares with others (:mod:`.prefix`).

A row carries the *epoch* its KV was computed in, and only KV of the present one is kept for later. With ``recompute``
each change of weights starts a new epoch; with ``keep`` there is only one.
"""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np
import torch

from longrein.engines.local import wire
from longrein.engines.local.admission import admit
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.forward import DecodeRows
from longrein.engines.local.kv import KvMemory, Slabs, capacity_for, copy_row
from longrein.engines.local.model import LocalModel
from longrein.engines.local.prefill import Prefill
from longrein.engines.local.prefix import BLOCK_TOKENS, Chunk, Conversation, PrefixStore, Span, shared_tokens
from longrein.engines.local.reports import Report, Reports
from longrein.engines.local.row import Job, Row, Ticket
from longrein.engines.local.sample import sample
from longrein.engines.local.stops import StopRule

PREFILL_TOKENS_BESIDE_DECODING = 128
PREFILL_TOKENS_ALONE = 512
MOST_PREFILLING = 8
"""Prompts in progress at once: a group's siblings. More would only hold memory."""


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
        self._store = PrefixStore(config.cache_tokens)
        self._kv = KvMemory(model.layout, config.batch_tokens)
        self._prefill = Prefill(self._kv, self._store)
        self._slabs = Slabs(self._kv)
        self._rows: list[Row] = []
        self._answers: list[Answer] = []
        self._reports = Reports()

    @property
    def idle(self) -> bool:
        """Nothing to compute."""
        return not self._rows and not self._prefill.rows and not self._waiting

    @property
    def begun(self) -> int:
        """Requests that have a row: the ones that decode and the ones whose prompt is being prefilled."""
        return len(self._rows) + len(self._prefill.rows)

    @property
    def kv_tokens(self) -> int:
        """Tokens for whose KV the batch has memory; what the prefix cache keeps is not counted."""
        return self._kv.tokens

    def watch(self, ticket: Ticket) -> None:
        """Report the tokens of a request that is about to come."""
        self._reports.watch(ticket)

    def submit(self, ticket: Ticket, request: wire.Generate) -> None:
        """Queue a request, or answer it with a refusal."""
        job = admit(ticket, request, self._model.vocab_size, self._model.context_length)
        if isinstance(job, Job):
            self._waiting.append(job)
        else:
            self._answers.append(Answer(ticket=ticket, reply=job))

    @torch.inference_mode()
    def cancel(self, ticket: Ticket) -> None:
        """Drop a request; its row is free after the next step. Unknown tickets are ignored."""
        self._reports.end(ticket)
        self._waiting = deque(job for job in self._waiting if job.ticket != ticket)
        for row in [row for row in self._prefill.rows if row.job.ticket == ticket]:
            self._prefill.drop(row)
        for row in self._rows:
            if row.job.ticket == ticket:
                row.finished = True

    def disconnect(self, connection: int) -> None:
        """Drop all requests of a connection."""
        begun = [row.job for row in (*self._prefill.rows, *self._rows)]
        for job in [*self._waiting, *begun]:
            if job.ticket.connection == connection:
                self.cancel(job.ticket)

    def forget(self, conversation_id: str) -> None:
        """Free the KV of a conversation, that of a running request when it ends."""
        self._store.forget(conversation_id)
        for row in (*self._prefill.rows, *self._rows):
            row.forgotten = row.forgotten or row.job.conversation_id == conversation_id

    def clear_cache(self) -> None:
        """Free the KV of all that does not run. Running requests go on with what they have."""
        self._store.clear()

    @torch.inference_mode()
    def swap(self, policy_version: int) -> None:
        """The model's weights have just changed. Running requests go on with the KV they have."""
        self._model.refresh()
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
        answers, self._answers = self._answers, []
        for answer in answers:
            self._reports.end(answer.ticket)
        return answers

    @torch.inference_mode()
    def step(self) -> None:
        """One pass: prefill what waits, within a budget, and sample one token for every running request."""
        # What ended is completed by itself if nothing else runs: whether the next request is here already must not
        # decide the shape of the pass, hence the last bits of what it computes.
        if not self._rows or any(not row.finished for row in self._rows):
            while self._start_next():
                pass
            pieces = self._prefill.pieces(self._prefill_budget())
            self._join()
        else:
            pieces = []
        if not self._rows and not pieces:
            return
        logits = self._model.forward.run(self._decodes(), [item.piece for item in pieces])
        self._prefill.computed(pieces)
        if self._rows:
            self._decoded(logits)

    def _prefill_budget(self) -> int:
        if self.begun == 1:
            # Alone, a prompt is computed block by block: the same bits, whatever was cached.
            return BLOCK_TOKENS
        return PREFILL_TOKENS_BESIDE_DECODING if self._rows else PREFILL_TOKENS_ALONE

    def _start_next(self) -> bool:
        """Whether a waiting request got a row."""
        # A conversation's next turn waits the one step in which its last token gets its KV.
        ending = {row.job.conversation_id for row in self._rows if row.finished}
        job = next((job for job in self._waiting if job.conversation_id not in ending), None)
        if job is None or not self._has_room(job):
            return False
        self._waiting.remove(job)
        seed = job.sampling.seed
        rng = np.random.default_rng(seed if seed is not None else self._seeds.spawn(1)[0])
        row = Row(
            job, StopRule(job.sampling, self._model.tokenizer), rng, self._prefill.slabs.take(job.prompt_ids.size)
        )
        row.restart(self._epoch, self._policy_version)
        self._prefill.begin(row)
        return True

    def _has_room(self, job: Job) -> bool:
        begun = [row.job for row in (*self._prefill.rows, *self._rows)]
        tokens = sum(capacity_for(one.most_tokens) for one in (*begun, job))
        fits = len(begun) < self._config.max_batch and tokens <= self._config.batch_tokens
        return not begun or (fits and len(self._prefill.rows) < MOST_PREFILLING)

    def _join(self) -> None:
        """Rows whose prompt has its KV decode from now on, in slabs with their like."""
        for row in self._prefill.take_complete():
            staged = row.place
            row.place = self._slabs.take(row.size)
            copy_row(staged, row.place)
            row.place.clear_rest()
            staged.slab.remove(staged)
            self._rows.append(row)

    def _decodes(self) -> list[DecodeRows]:
        """The running rows slab by slab; ``self._rows`` takes that order."""
        for row in self._rows:
            self._slabs.grow(row.place, row.cached + 1)
        self._rows.sort(key=lambda row: (row.place.slab.capacity, row.place.index))
        decodes: list[DecodeRows] = []
        for slab in dict.fromkeys(row.place.slab for row in self._rows):
            rows = [row for row in self._rows if row.place.slab is slab]
            token_ids = np.array([row.token_ids[-1] for row in rows], dtype=np.int32)
            positions = np.array([row.cached for row in rows], dtype=np.int64)
            shared = shared_tokens([row.spans for row in rows])
            decodes.append(DecodeRows(slab=slab, token_ids=token_ids, positions=positions, shared_tokens=shared))
        return decodes

    def _decoded(self, logits: torch.Tensor) -> None:
        for row in self._rows:
            if row.cached == row.prefill_end:
                row.prefill_tokens += 1
            row.cached += 1
            row.place.used = row.cached
        for index, row in enumerate(self._rows):
            # Its last token's KV is as little worth as its logits, though nothing is sampled from them.
            if row.finished and not logits[index].isfinite().all():
                _empty(row)
        live = [index for index, row in enumerate(self._rows) if not row.finished]
        if live:
            self._sample(
                logits if len(live) == len(self._rows) else logits[live], [self._rows[index] for index in live]
            )
        gone = [row for row in self._rows if row.finished and (row.cached == row.size or not self._worth_keeping(row))]
        for row in gone:
            self._leave(row)

    def _sample(self, logits: torch.Tensor, rows: list[Row]) -> None:
        uniforms = np.array([row.draw() for row in rows], dtype=np.float32)
        sampled = sample(logits, [row.job.sampling for row in rows], uniforms)
        for row, token_id, logprob in zip(rows, sampled.token_ids.tolist(), sampled.logprobs.tolist(), strict=True):
            if not np.isfinite(logprob):
                self._fail(row)
                continue
            reason = row.append(token_id, logprob, self._policy_version)
            self._reports.add(row.job.ticket, token_id, logprob)
            if reason is not None:
                row.finished = True
                self._answers.append(Answer(ticket=row.job.ticket, reply=row.done(reason)))

    def _fail(self, row: Row) -> None:
        row.finished = True
        _empty(row)
        # What such weights computed may have been shared already, or lie where a row that moved has its rest.
        self._store.clear()
        for other in self._rows:
            other.place.clear_rest()
        message = (
            f"the model's logits are not finite (policy version {self._policy_version}); have its weights diverged?"
        )
        self._answers.append(
            Answer(ticket=row.job.ticket, reply=wire.Failed(call=row.job.ticket.call, message=message))
        )

    def _worth_keeping(self, row: Row) -> bool:
        return row.epoch == self._epoch and not row.forgotten and row.size <= self._config.cache_tokens

    def _leave(self, row: Row) -> None:
        if self._worth_keeping(row):
            own = Chunk(row.place.save(row.kept_tokens, row.cached), row.cached - row.kept_tokens)
            self._store.put(
                Conversation(
                    conversation_id=row.job.conversation_id,
                    token_ids=row.cached_ids.copy(),
                    spans=(*row.spans, Span(chunk=own, length=own.size)),
                    block_tokens=row.block_tokens,
                    policy_version=row.kv_version,
                )
            )
        row.place.slab.remove(row.place)
        self._rows.remove(row)


def _empty(row: Row) -> None:
    """Nothing of it is kept, nor left where another row will move to: zero times NaN is NaN."""
    row.forgotten = True
    row.place.used = 0
    row.place.clear_rest()
