"""Every call draws from a seed of its own."""

from __future__ import annotations

from hashlib import sha256


def call_seed(seed: int, session_id: str, number: int) -> int:
    """A call's own seed, 48 bits: the same attempt made again samples the same, and no two calls share their draws."""
    return int.from_bytes(sha256(f"{seed} {session_id} {number}".encode()).digest()[:6])
