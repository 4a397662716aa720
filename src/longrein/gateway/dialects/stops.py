"""The strings at which an agent wants an answer to stop."""

from __future__ import annotations

from collections.abc import Sequence

from longrein.errors import GatewayRequestError

MAX_STOPS = 64
"""OpenAI takes 4, Google 5; every one of them is looked for in whatever is sampled."""


def read_stops(given: Sequence[str] | None) -> tuple[str, ...]:
    """Those that are not empty. Raises :class:`GatewayRequestError` for more than ``MAX_STOPS``."""
    stops = given or ()
    if len(stops) > MAX_STOPS:
        raise GatewayRequestError(
            f"{len(stops)} stop strings: send at most {MAX_STOPS}", status=400, code="invalid_request"
        )
    return tuple(text for text in stops if text)
