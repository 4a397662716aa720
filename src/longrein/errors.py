"""The one tree of errors, and the one boundary where a failed rollout becomes data.

Every error is also a standard-library type, so callers who know nothing of Longrein can still
catch what they mean. Each message says what was wrong, where, and what to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from longrein.types import Failure, FailureKind


class LongreinError(Exception):
    """Root of every error that Longrein raises on purpose."""


class ConfigError(LongreinError, ValueError):
    """A run file, an argument or a combination of them cannot work."""


class TaskError(LongreinError, ValueError):
    """A task directory, dataset row or suite name is malformed."""


class TraceError(LongreinError, ValueError):
    """A trace breaks its own rules (unknown parent, mismatched lengths)."""


class RenderError(LongreinError, ValueError):
    """A conversation cannot be turned into token ids by this model's chat template."""


class BatchError(LongreinError, ValueError):
    """Rows or groups that cannot be trained on (ids outside the vocabulary, sizes that do not match)."""


class CheckpointError(LongreinError, ValueError):
    """A checkpoint or model folder does not fit what is asked of it."""


class InfrastructureError(LongreinError, RuntimeError):
    """An infrastructure fault that ends one rollout and nothing else.

    Raised inside a session; :func:`boundary` turns it into a :class:`~longrein.types.Failure`.
    """

    kind: FailureKind = "session"


class SandboxError(InfrastructureError, OSError):
    """The sandbox could not be started, or died under us."""

    kind: FailureKind = "sandbox"


class HarnessError(InfrastructureError):
    """The agent could not be launched (missing binary, bad mount)."""

    kind: FailureKind = "harness"


class EngineError(InfrastructureError, ConnectionError):
    """The engine failed or went away."""

    kind: FailureKind = "engine"


class EngineUnreachableError(EngineError):
    """The engine does not answer just now; asked again later, or another one like it, it may."""


class EngineGoneError(EngineError):
    """The engine's own process is not there any more; nobody but its owner can start it again."""


class EngineRouteError(EngineError, LookupError):
    """The engine has no such way to be asked, or keeps it closed."""


class EngineRequestError(EngineError, ValueError):
    """The engine refused one request (ids outside the vocabulary, nothing to decode from)."""


class GenerationAbortedError(EngineError):
    """Whoever runs the server cut this generation off, to change the weights say; the same request may come again."""


class ContextLengthError(LongreinError, ValueError):
    """A prompt leaves no room in the model's context. Ends the rollout as *truncated*, not failed."""


class GatewayRequestError(LongreinError, ValueError):
    """The gateway refuses one request of an agent; the session goes on. ``status`` is the HTTP status."""

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class PromptTooLongError(GatewayRequestError):
    """A prompt leaves no room in the context. Worded as OpenAI does; other dialects say it their own way."""

    def __init__(self, *, prompt_tokens: int, context_length: int) -> None:
        super().__init__(
            f"This model's maximum context length is {context_length} tokens. However, your messages resulted in "
            f"{prompt_tokens} tokens. Please reduce the length of the messages.",
            status=400,
            code="context_length_exceeded",
        )
        self.prompt_tokens = prompt_tokens
        self.context_length = context_length


class WorkerError(LongreinError, RuntimeError):
    """The rollout worker process died or cannot make progress."""


class RankError(LongreinError, RuntimeError):
    """Another process that trains the same model is gone, or stopped for a reason that it gives."""


class DivergedError(LongreinError, ArithmeticError):
    """Loss or gradients were not finite for several steps in a row: training on would only waste time."""


class BugError(LongreinError, RuntimeError):
    """A bug of ours whose own type (``OSError``, say) would pass for a fault of the world. Its cause is the bug."""


class Captured:
    """What :func:`boundary` caught, if anything."""

    def __init__(self) -> None:
        self.failure: Failure | None = None


@contextmanager
def boundary() -> Generator[Captured, None, None]:
    """Turn an infrastructure fault of one rollout into data.

    Only :class:`InfrastructureError`, ``OSError`` and ``TimeoutError`` are faults of the world; everything
    else is a bug of ours and passes through. Cancellation always passes through.
    """
    captured = Captured()
    try:
        yield captured
    except InfrastructureError as error:
        captured.failure = Failure(kind=error.kind, message=str(error))
    except asyncio.CancelledError:
        raise
    except (OSError, TimeoutError) as error:
        captured.failure = Failure(kind="session", message=f"{type(error).__name__}: {error}")
