"""What one session has used of what the run allows it. Whoever asks for more gets an answer that nobody sampled."""

from __future__ import annotations

import time
from typing import Literal

from longrein.gateway.settings import GatewaySettings
from longrein.types import Completion

Limit = Literal["calls", "sampled_tokens", "time", "context"]


class Budget:
    """Counts calls, sampled tokens, seconds since the session's opening, and prompts that did not fit."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._ends_at_s = time.monotonic() + settings.max_session_s
        self._calls = 0
        self._sampled_tokens = 0
        self._context_refusals = 0

    @property
    def left_s(self) -> float:
        """Seconds until the session's time is up; negative afterwards."""
        return self._ends_at_s - time.monotonic()

    @property
    def left_tokens(self) -> int:
        """Tokens that may still be sampled. Calls under way together may each take all of them."""
        return self._settings.max_sampled_tokens - self._sampled_tokens

    def spent(self) -> Limit | Literal[""]:
        """The limit that forbids another call; empty when none does."""
        if self._calls >= self._settings.max_calls:
            return "calls"
        if self.left_tokens < 1:
            return "sampled_tokens"
        return "time" if self.left_s <= 0 else ""

    def start_call(self) -> int:
        """Count a call; returns its number, from 1."""
        self._calls += 1
        return self._calls

    def end_call(self, completion: Completion) -> None:
        """Count what it sampled."""
        self._sampled_tokens += completion.token_ids.size

    def may_refuse_context(self) -> bool:
        """Count a prompt that does not fit; ``False`` once the agent was told so often enough."""
        self._context_refusals += 1
        return self._context_refusals <= self._settings.max_context_refusals
