"""A bug of ours inside a request must reach whoever owns the session, not end as a 500 that an agent shrugs off."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from longrein.errors import BugError, GatewayRequestError, InfrastructureError


class BugTrap:
    """Remembers the first error that is neither a refusal nor a cancellation, says so, and lets it pass."""

    def __init__(self, on_bug: Callable[[], None]) -> None:
        self._on_bug = on_bug
        self._bug: Exception | None = None

    def __enter__(self) -> None:
        """Watch a block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Never swallows."""
        if self._bug is None and isinstance(error, Exception) and not isinstance(error, GatewayRequestError):
            self._bug = error
            self._on_bug()

    def check(self) -> None:
        """Raise what was trapped, if anything; as a :class:`BugError` where ``boundary()`` would make it data."""
        if isinstance(self._bug, InfrastructureError | OSError):
            raise BugError(
                f"a bug of the gateway's own: {type(self._bug).__name__}: {self._bug}; the cause is shown above"
            ) from self._bug
        if self._bug is not None:
            raise self._bug
