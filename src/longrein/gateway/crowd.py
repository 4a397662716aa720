"""How many requests of one session are served at once: each may hold a whole body in memory."""

from __future__ import annotations

from longrein.errors import GatewayRequestError


class Crowd:
    """A context for each request. One too many is refused for now."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside = 0

    def __enter__(self) -> None:
        """Raises :class:`GatewayRequestError` (429) where there is no room."""
        if self._inside >= self._limit:
            raise GatewayRequestError(
                f"more than {self._limit} requests of this session at once", status=429, code="rate_limit_exceeded"
            )
        self._inside += 1

    def __exit__(self, *_: object) -> None:
        """Make room."""
        self._inside -= 1
