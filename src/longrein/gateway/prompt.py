"""The exact prompt of one request: an earlier call's ids and what is new, or the whole conversation rendered."""

from __future__ import annotations

import msgspec
import numpy as np

from longrein.engines.render import ChatRenderer
from longrein.errors import GatewayRequestError, RenderError
from longrein.gateway.dialect import ChatRequest
from longrein.gateway.tree import CallTree, History, Place
from longrein.types import I32


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """Ids for the engine and how they are stored."""

    place: Place
    delta: I32
    """What is new after the parent's prompt + completion; everything at a root."""
    ids: I32
    """Everything, shape ``[n]``."""


def build_prompt(renderer: ChatRenderer, tree: CallTree, request: ChatRequest, history: History) -> Prompt:
    """Extend the parent's stream where the renderer can prove how; else start a new branch.

    Raises:
        GatewayRequestError: the chat template refuses the conversation.
    """
    place = tree.place(request, history)
    if place.parent_id is not None:
        parent = tree.call(place.parent_id)
        before = tree.prompt_ids(parent.call_id)
        sampled = parent.completion.token_ids
        delta = renderer.bridge(
            prompt=before, completion=sampled, reply=parent.reply, new=place.new, tools=request.tools
        )
        if delta is not None:
            return Prompt(place=place, delta=delta, ids=np.concatenate([before, sampled, delta]))
        place = tree.root(request, history, "not_bridgeable")
    try:
        ids = renderer.render(request.messages, request.tools)
    except RenderError as error:
        raise GatewayRequestError(str(error), status=400, code="unrenderable") from error
    return Prompt(place=place, delta=ids, ids=ids)
