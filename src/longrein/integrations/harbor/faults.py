"""What a provider of environments raises is a fault of the world, whatever its type."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from longrein.errors import LongreinError, SandboxError


@contextmanager
def provider(what: str) -> Generator[None, None, None]:
    """Turn an error of a provider's own kind, of which each has others, into ``SandboxError``.

    Args:
        what: was being done, for the message.
    """
    try:
        yield
    except LongreinError:
        raise
    except Exception as error:
        raise SandboxError(f"Harbor's environment failed ({what}): {type(error).__name__}: {error}") from error
