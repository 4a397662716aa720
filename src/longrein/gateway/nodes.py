"""A stored call, and what the tree knows of it beside."""

from __future__ import annotations

import msgspec

from longrein.gateway import stitch
from longrein.gateway.dialect import Caller
from longrein.types import Call, Message


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A request's messages as they count, and digests of them."""

    messages: tuple[Message, ...]
    """Those of the request, without an unfinished answer of ours at the end."""
    meanings: tuple[bytes, ...]
    """One a message. An echo known by its tool-call ids has the meaning of what we had said."""
    exacts: tuple[bytes, ...]
    """One a message, reasoning included."""
    chains: tuple[bytes, ...]
    """One a message: the conversation up to and including it."""
    tools: bytes
    asks: bytes
    """Two requests with the same digest ask for the same thing: messages, tools and the agent's thread."""
    key: bytes
    """``asks``, how long the answer may be, where it stops, and what else was asked for (a seed, for instance)."""

    @property
    def opening(self) -> bytes:
        """Digest of the first message that is not the system's."""
        return stitch.opening(self.messages, self.exacts)

    @property
    def lead(self) -> bytes:
        """Digest of the system messages that open the conversation."""
        return stitch.lead(self.messages, self.exacts)


class Node(msgspec.Struct, kw_only=True):
    """One call. ``call``, ``readers`` and ``echoed`` change, when it is delivered and when its answer comes back."""

    call: Call
    readers: int = 0
    """Clients that have its answer."""
    caller: Caller
    new_exacts: tuple[bytes, ...]
    """One for each message that this call adds to its parent's."""
    asked_last: bytes
    """Meaning of the last message it answers."""
    reply_meaning: bytes
    tools: bytes
    asks: bytes
    holds_replies: bool
    """Its conversation holds answers that we gave in another one, or where tools were offered."""
    continues: int | None
    """The call whose answer this one goes on from as from a summary; whether it was one is seen later."""
    stem: int | None
    """See :class:`~longrein.gateway.branches.Origin`."""
    opening: bytes
    lead: bytes
    """Both of the whole conversation, see :class:`History`."""
    after: bytes
    """Digest of the conversation up to and including the reply."""
    after_lead: bytes
    """The same without the system messages that open it."""
    echoed: bool = False
    """A later request holds the answer, right after what it answers."""
