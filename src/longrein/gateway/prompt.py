"""The exact prompt of one request: an earlier call's ids and what is new, or the whole conversation rendered."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
import numpy as np

from longrein.engines.render import ChatRenderer
from longrein.errors import GatewayRequestError, RenderError
from longrein.gateway.addresses import NativeIds, answers_before, readdressed
from longrein.gateway.aside import LARGE_BYTES, aside
from longrein.gateway.dialect import ChatRequest
from longrein.gateway.tree import CallTree, History, Place
from longrein.types import I32, Call


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """Ids for the engine and how they are stored."""

    place: Place
    delta: I32
    """What is new after the parent's prompt + completion; everything at a root."""
    ids: I32
    """Everything, shape ``[n]``."""


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """The call that a prompt goes on from."""

    call: Call
    prompt_ids: I32


class Prompts:
    """Builds the prompts of one session."""

    def __init__(self, renderer: ChatRenderer, tree: CallTree, native: NativeIds) -> None:
        self._renderer = renderer
        self._tree = tree
        self._native = native
        self._under_way: dict[bytes, asyncio.Task[Prompt]] = {}
        """Key of a request -> its prompt."""

    async def build(self, request: ChatRequest, history: History) -> Prompt:
        """Extend the parent's stream where the renderer can prove how; else start a new branch.

        At once, but for large prompts: these are written in a thread, for all that ask the same meanwhile.

        Raises:
            GatewayRequestError: the chat template refuses the conversation.
        """
        place = self._tree.place(request, history)
        if _new_bytes(request, place) < LARGE_BYTES:
            return self._write(place, self._parent(place), request, history)
        writing = self._under_way.get(history.key)
        if writing is None:
            writing = asyncio.create_task(self._write_aside(request, history))
            writing.add_done_callback(partial(self._land, history.key))
            self._under_way[history.key] = writing
        await asyncio.wait({writing})
        return writing.result()

    async def _write_aside(self, request: ChatRequest, history: History) -> Prompt:
        while True:
            place = self._tree.place(request, history)
            work = partial(self._write, place, self._parent(place), request, history)
            prompt = await aside(request.size_bytes, work)
            # Calls that were stored meanwhile may have given it another place.
            if self._tree.place(request, history) == place:
                return prompt

    def _land(self, key: bytes, writing: asyncio.Task[Prompt]) -> None:
        del self._under_way[key]
        if not writing.cancelled():
            # Looked at here, because everybody who waited may have left.
            writing.exception()

    def _parent(self, place: Place) -> Parent | None:
        if place.parent_id is None:
            return None
        return Parent(call=self._tree.call(place.parent_id), prompt_ids=self._tree.prompt_ids(place.parent_id))

    def _write(self, place: Place, parent: Parent | None, request: ChatRequest, history: History) -> Prompt:
        """May run in a thread: of what the loop changes it reads the ids alone, which are only added to."""
        if parent is not None:
            delta = self._bridge(parent, request, history, len(place.new))
            if delta is not None:
                ids = np.concatenate([parent.prompt_ids, parent.call.completion.token_ids, delta])
                return Prompt(place=place, delta=delta, ids=ids)
            place = self._tree.root(history, "not_bridgeable")
        try:
            ids = self._renderer.render(self._native.restore(history.messages), request.tools)
        except RenderError as error:
            raise GatewayRequestError(str(error), status=400, code="unrenderable") from error
        return Prompt(place=place, delta=ids, ids=ids)

    def _bridge(self, parent: Parent, request: ChatRequest, history: History, added: int) -> I32 | None:
        """Ids for the last ``added`` messages; ``None`` where nothing proves them right."""
        end = len(history.messages) - added
        said = parent.call.reply
        new = readdressed(history.messages[end:], history.messages[end - 1], said)
        if answers_before(said, new, history.messages[: end - 1]):
            return None
        reply, *shown = self._native.restore((said, *new))
        return self._renderer.bridge(
            prompt=parent.prompt_ids,
            completion=parent.call.completion.token_ids,
            reply=reply,
            new=tuple(shown),
            tools=request.tools,
        )


def _new_bytes(request: ChatRequest, place: Place) -> int:
    """How much there is to write, about."""
    if place.parent_id is None or request.size_bytes < LARGE_BYTES:
        return request.size_bytes
    return sum(len(message.get("content") or "") for message in place.new)
