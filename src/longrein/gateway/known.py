"""Parts of requests that were read before: agents send the same messages and tools again with every request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from longrein.engines.recent import Recent

T = TypeVar("T")
CAPACITY_BYTES = 16 * 1024 * 1024
"""JSON of the parts that are kept, and their objects."""
OBJECT_BYTES = 1024
"""What a short part takes beside its text: a message of a few words is mostly objects."""


class Known(Generic[T]):
    """Reads pieces of JSON. The same bytes give the same object, which nobody may change, whoever sends them."""

    def __init__(self, read: Callable[[bytes], T], capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._read = read
        self._recent: Recent[bytes, T] = Recent(capacity_bytes)

    @property
    def kept_bytes(self) -> int:
        """Of all that is kept, as text and as objects."""
        return self._recent.weight

    def read(self, raw: msgspec.Raw) -> T:
        """What ``read`` makes of these bytes; raises what it raises."""
        text = bytes(raw)
        value = self._recent.get(text)
        if value is None:
            value = self._read(text)
            self._recent.put(text, value, len(text) + OBJECT_BYTES)
        return value

    def clear(self) -> None:
        """Let everything go; it is read again when it comes again."""
        self._recent.clear()
