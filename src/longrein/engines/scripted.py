"""A real engine that says what it is told: for oracles (SFT demonstrations) and for tests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from longrein.engines.base import EngineInfo, EngineRequest
from longrein.engines.render import ChatRenderer
from longrein.errors import ContextLengthError, EngineError, EngineRequestError
from longrein.types import F32, I32, Completion, FinishReason, Message


class Delay(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a script that waits before the next one is said."""

    seconds: float


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a script that fails instead of answering."""

    error: EngineError


Entry = Message | I32 | Delay | Fault
"""What a script holds: an assistant message, raw ids, a wait or a failure."""


class Script(Protocol):
    """Decides what a :class:`ScriptedEngine` says."""

    async def reply(self, request: EngineRequest) -> I32:
        """Ids to say, shape ``[n]``. May wait, and may raise :class:`EngineError`."""
        ...

    def tell(self, conversation_id: str, turns: Sequence[Entry]) -> None:
        """From now on say ``turns`` in this conversation."""
        ...


class TurnList:
    """Says each conversation's turns in order; the last one repeats.

    A conversation that was told nothing gets ``default``.
    """

    def __init__(self, renderer: ChatRenderer, default: Sequence[Entry] = ()) -> None:
        self._renderer = renderer
        self._default = tuple(default)
        self._turns: dict[str, deque[Entry]] = {}

    def tell(self, conversation_id: str, turns: Sequence[Entry]) -> None:
        """Replace what is left to say in a conversation."""
        self._turns[conversation_id] = deque(turns)

    async def reply(self, request: EngineRequest) -> I32:
        """The next turn. A request that is cancelled while it waits leaves the turn to the next one."""
        turns = self._turns.setdefault(request.conversation_id, deque(self._default))
        while turns:
            entry = turns[0] if len(turns) == 1 else turns.popleft()
            if isinstance(entry, Delay):
                await asyncio.sleep(entry.seconds)
                if turns and turns[0] is entry:
                    break
            elif isinstance(entry, Fault):
                raise entry.error
            else:
                return self._renderer.encode_reply(entry) if isinstance(entry, dict) else entry
        raise EngineRequestError(
            f"the script has nothing to say in conversation {request.conversation_id!r}; call tell() first"
        )


class ScriptedEngine:
    """An engine without a model. Honours ``max_tokens``, stop tokens, the context length and cancellation.

    Stop strings are left to the script. ``policy_version`` may be set at any moment; a completion carries the
    versions at its start and end.
    """

    def __init__(self, script: Script, *, vocab_size: int, context_length: int, model: str = "scripted") -> None:
        self._script = script
        self._info = EngineInfo(model=model, context_length=context_length, vocab_size=vocab_size)
        self.policy_version = 0
        self.requests: list[EngineRequest] = []
        """Every request, in order of arrival."""
        self.completions: dict[str, Completion] = {}
        """Request id -> what was said."""
        self.cancelled: list[str] = []
        """Ids of requests whose caller went away."""
        self.forgotten: list[str] = []
        """Conversations that the gateway let go."""

    @property
    def sampled_tokens(self) -> int:
        """Tokens said in all completions that reached their caller."""
        return sum(completion.token_ids.size for completion in self.completions.values())

    def tell(self, session_id: str, turns: Sequence[Entry]) -> None:
        """Say ``turns``, in order, in the session of that id."""
        self._script.tell(session_id, turns)

    async def info(self) -> EngineInfo:
        """See :class:`~longrein.engines.base.Engine`."""
        return self._info

    async def generate(self, request: EngineRequest) -> Completion:
        """See :class:`~longrein.engines.base.Engine`."""
        self.requests.append(request)
        room = self._room(request.prompt_ids)
        started_with = self.policy_version
        try:
            told = await self._script.reply(request)
        except asyncio.CancelledError:
            self.cancelled.append(request.request_id)
            raise
        said = _cut(told, request.sampling.stop_token_ids, min(room, request.sampling.max_tokens))
        completion = Completion(
            token_ids=said.token_ids,
            logprobs=_logprobs(said.token_ids),
            finish_reason=said.finish_reason,
            min_policy_version=started_with,
            max_policy_version=self.policy_version,
            prefill_tokens=request.prompt_ids.size,
        )
        self.completions[request.request_id] = completion
        return completion

    async def forget(self, conversation_id: str) -> None:
        """See :class:`~longrein.engines.base.Engine`."""
        self.forgotten.append(conversation_id)

    async def close(self) -> None:
        """Nothing to close."""

    def _room(self, prompt_ids: I32) -> int:
        if prompt_ids.size == 0:
            raise EngineRequestError("the prompt is empty: an engine needs one token to decode from")
        if prompt_ids.min() < 0 or prompt_ids.max() >= self._info.vocab_size:
            raise EngineRequestError(f"the prompt has ids outside the vocabulary of {self._info.vocab_size}")
        room = self._info.context_length - prompt_ids.size
        if room < 1:
            raise ContextLengthError(
                f"a prompt of {prompt_ids.size} tokens leaves no room in a context of {self._info.context_length}"
            )
        return room


class _Said(msgspec.Struct, frozen=True, kw_only=True):
    token_ids: I32
    finish_reason: FinishReason


def _cut(told: I32, stop_token_ids: tuple[int, ...], limit: int) -> _Said:
    ids = np.asarray(told, dtype=np.int32)
    stops = np.flatnonzero(np.isin(ids, stop_token_ids))
    ids = ids[: stops[0] + 1] if stops.size else ids
    if ids.size > limit:
        return _Said(token_ids=ids[:limit], finish_reason="length")
    return _Said(token_ids=ids, finish_reason="stop")


def _logprobs(ids: I32) -> F32:
    """Finite negatives that depend on position and token only, shape ``[n]``."""
    mixed = (np.arange(ids.size, dtype=np.uint64) * 2654435761 + ids.astype(np.uint64) * 40503) % 1000
    return (-(mixed.astype(np.float32) + 1.0) / 500.0).astype(np.float32)


class ScriptedEngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A picklable :class:`ScriptedEngine` that says ``turns``, in order, in every conversation."""

    model: str
    """Folder or hub id of the tokenizer."""
    chat_template: str | None = None
    turns: tuple[Message, ...] = ()
    conversations: dict[str, tuple[Message, ...]] = {}
    """Session id -> its own turns."""
    context_length: int = 8192

    async def connect(self) -> ScriptedEngine:
        """Load the tokenizer and build the engine. Raises :class:`~longrein.errors.RenderError` without one."""
        renderer = ChatRenderer.load(self.model, chat_template=self.chat_template)
        script = TurnList(renderer, self.turns)
        for session_id, turns in self.conversations.items():
            script.tell(session_id, turns)
        return ScriptedEngine(script, vocab_size=renderer.vocab_size, context_length=self.context_length)
