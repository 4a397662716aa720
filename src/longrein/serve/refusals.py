"""Refusals of the token routes, in the body that vLLM writes (0.32, ``vllm/entrypoints/serve/engine/protocol.py``)."""

from __future__ import annotations

import msgspec

from longrein.errors import ContextLengthError, EngineError, EngineRequestError, GatewayRequestError

TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    409: "ConflictError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's error body."""

    error: ErrorInfo


def bad_request(message: str, param: str = "") -> GatewayRequestError:
    """A 400. ``param`` is the parameter of the request that it is about."""
    return GatewayRequestError(message, status=400, code=param)


def of_engine(error: ContextLengthError | EngineError) -> GatewayRequestError:
    """What a client hears of an engine that refused its request (400) or failed (500)."""
    refused = isinstance(error, ContextLengthError | EngineRequestError)
    return GatewayRequestError(str(error), status=400 if refused else 500, code="")


def engine_is_gone(error: EngineError) -> GatewayRequestError:
    """A 503, as of ``/health``: an outage for clients, which wait for whoever starts the server again."""
    return GatewayRequestError(str(error), status=503, code="")


def encode_error(error: GatewayRequestError) -> bytes:
    """The body of a refusal."""
    kind = TYPES.get(error.status, "BadRequestError" if error.status < 500 else "InternalServerError")
    info = ErrorInfo(message=str(error), type=kind, param=error.code or None, code=error.status)
    return msgspec.json.encode(ErrorBody(error=info))
