"""What was used last, up to a bound, and keys to find it by."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from hashlib import blake2b
from threading import Lock
from typing import Any, Generic, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Keeps the values used last, as long as their weights together stay within ``capacity``.

    A value over the capacity is not kept; a capacity of 0 keeps nothing. Threads may share it.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._weights: dict[K, int] = {}
        self.weight = 0
        """Of everything kept."""
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """The value, which is now the one used last; ``None`` when it is not kept."""
        with self._lock:
            value = self._kept.get(key)
            if value is not None:
                self._kept.move_to_end(key)
            return value

    def put(self, key: K, value: V, weight: int) -> None:
        """Keep a value of a weight of at least 1, and let the oldest go where there is no more room."""
        if weight > self._capacity:
            return
        with self._lock:
            if key in self._kept:
                self._forget(key)
            self._kept[key] = value
            self._weights[key] = weight
            self.weight += weight
            while self.weight > self._capacity:
                self._forget(next(iter(self._kept)))

    def clear(self) -> None:
        """Let everything go."""
        with self._lock:
            self._kept.clear()
            self._weights.clear()
            self.weight = 0

    def _forget(self, key: K) -> None:
        del self._kept[key]
        self.weight -= self._weights.pop(key)


def digest(value: Any) -> bytes:
    """16 bytes that stand for data made of JSON's own types."""
    return blake2b(msgspec.json.encode(value), digest_size=16).digest()
