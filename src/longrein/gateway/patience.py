"""An engine that fails is asked again; the agent learns of it only when that does not help."""

from __future__ import annotations

import asyncio
from collections import Counter

from longrein.engines.base import Engine, EngineRequest
from longrein.errors import EngineError, EngineRequestError
from longrein.gateway.completions import check_completion
from longrein.gateway.settings import GatewaySettings
from longrein.types import Completion

ENGINE_TRIES = 3


class PatientEngine:
    """Asks an engine up to ``ENGINE_TRIES`` times, each within the run's time, and lets nothing malformed through."""

    def __init__(self, engine: Engine, settings: GatewaySettings, counters: Counter[str]) -> None:
        self._engine = engine
        self._settings = settings
        self._counters = counters
        self._vocab_size = 0

    async def generate(self, request: EngineRequest) -> Completion:
        """Sample one completion.

        Raises:
            ContextLengthError: prompt and one new token do not fit in the context.
            EngineRequestError: the engine refused the request, as it would again.
            EngineError: it failed, hung or returned nonsense at every try.
        """
        for attempt in range(ENGINE_TRIES - 1):
            try:
                return await self._once(request)
            except EngineRequestError:
                raise
            except EngineError:
                self._counters["engine_retries"] += 1
            await asyncio.sleep(self._settings.retry_delay_s * 4**attempt)
        return await self._once(request)

    async def _once(self, request: EngineRequest) -> Completion:
        limit = asyncio.timeout(self._settings.engine_timeout_s)
        try:
            async with limit:
                self._vocab_size = self._vocab_size or (await self._engine.info()).vocab_size
                completion = await self._engine.generate(request)
        except TimeoutError as error:
            if not limit.expired():
                raise
            self._counters["engine_timeouts"] += 1
            raise EngineError(
                f"the engine gave no answer within {self._settings.engine_timeout_s:g} s; "
                "raise engine_timeout_s if completions may take so long"
            ) from error
        check_completion(completion, request, self._vocab_size)
        return completion
