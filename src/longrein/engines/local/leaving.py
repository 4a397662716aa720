"""What becomes of a row's KV when its request ends: kept for the conversation's next turn, or nothing of it is left."""

from __future__ import annotations

from longrein.engines.local.prefix import Chunk, Conversation, PrefixStore, Span
from longrein.engines.local.row import Row


def keep(row: Row, store: PrefixStore) -> None:
    """Keep all that a row has KV of."""
    own = Chunk(row.place.save(row.kept_tokens, row.cached), row.cached - row.kept_tokens)
    store.put(
        Conversation(
            conversation_id=row.job.conversation_id,
            token_ids=row.cached_ids.copy(),
            spans=(*row.spans, Span(chunk=own, length=own.size)),
            block_tokens=row.block_tokens,
            policy_version=row.kv_version,
        )
    )


def empty(row: Row) -> None:
    """Nothing of it is kept, nor left where another row will move to: zero times NaN is NaN."""
    row.forgotten = True
    row.place.used = 0
    row.place.clear_rest()
