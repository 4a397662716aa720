"""What a server's answer means: a refusal of this request, a fault of the server, or an outage."""

from __future__ import annotations

from typing import Any, NoReturn, cast

import msgspec

from longrein.errors import (
    ContextLengthError,
    EngineError,
    EngineRequestError,
    EngineRouteError,
    EngineUnreachableError,
)

OUTAGE = frozenset({502, 503, 504})
_TOO_LONG = ("maximum model length", "maximum context length")
"""Of the token route and the completions route."""
_DEAD_CORE = "EngineCore encountered an issue"
_NO_MODEL = "NotFoundError"
_LONGEST_MESSAGE = 500


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP answer."""

    url: str
    """The base URL of the server."""
    path: str
    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        """A 200."""
        return self.status == 200

    @property
    def no_route(self) -> bool:
        """The server has no such route, or keeps it closed. A model that is not there is another 404."""
        return self.status in {403, 405} or (self.status == 404 and self.error_type != _NO_MODEL)

    @property
    def error_type(self) -> str:
        """vLLM's name of the error, or nothing."""
        return str(_error(self.body).get("type") or "")

    @property
    def message(self) -> str:
        """What the server said, as far as it fits."""
        said = _error(self.body).get("message") or self.body.decode(errors="replace")
        return str(said)[:_LONGEST_MESSAGE]

    def json(self) -> Any:
        """The decoded body. Raises :class:`EngineError` if it is none."""
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError as error:
            raise EngineError(f"{self.url}{self.path} sent no JSON ({error}); is it a vLLM server?") from error

    def field(self, name: str) -> Any:
        """A field of the decoded body. Raises :class:`EngineError` where there is none."""
        decoded = self.json()
        if not isinstance(decoded, dict) or name not in decoded:
            raise EngineError(
                f"{self.url}{self.path} answered without {name!r}: {self.body[:80]!r}; is it a vLLM server of 0.32 or "
                "later?"
            )
        return cast("dict[str, Any]", decoded)[name]

    def refuse(self) -> NoReturn:
        """Raise what an answer other than 200 means.

        Raises:
            ContextLengthError: the prompt is too long.
            EngineRouteError: the server has no such route, or keeps it closed.
            EngineRequestError: any other 4xx: the same request would be refused again.
            EngineUnreachableError: a proxy's 502 to 504, an engine core that is dead, or a model that is not there: it
                was when the run began, so the server was started again and has not got its adapter back.
            EngineError: any other fault.
        """
        where = f"{self.url}{self.path} answered {self.status}: {self.message}"
        if self.status == 400 and any(words in self.message for words in _TOO_LONG):
            raise ContextLengthError(self.message)
        if self.status in OUTAGE or _DEAD_CORE in self.message or self.error_type == _NO_MODEL:
            raise EngineUnreachableError(f"{where}. See the server's log.")
        if self.no_route:
            raise EngineRouteError(where)
        if 400 <= self.status < 500:
            raise EngineRequestError(where)
        raise EngineError(f"{where}. See the server's log.")


def _error(body: bytes) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
    error: Any = decoded.get("error") or {}
    # Some routes say {"error": "text"}.
    return cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": error}
