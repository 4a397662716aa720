"""vLLM servers as the gateway sees them. Imports no torch, so that a rollout worker stays light."""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec
import numpy as np

from longrein.engines.base import EngineInfo, EngineRequest
from longrein.engines.request_checks import out_of_range, refuse_malformed
from longrein.engines.vllm.checks import tokenized
from longrein.engines.vllm.fleet import Fleet, Member
from longrein.engines.vllm.labels import Labels
from longrein.engines.vllm.outage import Patience
from longrein.errors import ContextLengthError, EngineError, EngineRequestError, EngineUnreachableError
from longrein.types import I32, Completion

RETRY_S = 1.0


class VllmEngine:
    """An async client of one or more servers of the same model; an :class:`~longrein.engines.base.Engine`.

    A request that no server could take, or whose server went away, is asked again, once a server is well and has the
    run's weights: nothing of it was used. A server's refusal is final.

    Args:
        info: what the servers agree on.
        fleet: the servers.
        labels: reads the versions of their weights.
        session: closed with the client.
        outage_timeout_s: how long a request waits for a server to come back, each time that it is lost.
    """

    def __init__(
        self, *, info: EngineInfo, fleet: Fleet, labels: Labels, session: aiohttp.ClientSession, outage_timeout_s: float
    ) -> None:
        self._info = info
        self._fleet = fleet
        self._labels = labels
        self._session = session
        self._outage_timeout_s = outage_timeout_s

    async def info(self) -> EngineInfo:
        """What the servers said of their model at the start."""
        return self._info

    async def generate(self, request: EngineRequest) -> Completion:
        """Sample one completion; see :meth:`longrein.engines.base.Engine.generate`.

        ``prefill_tokens`` is the whole prompt where the server does not say what came from its cache
        (``--enable-prompt-tokens-details``).
        """
        fitted = self._fitted(request)
        patience = Patience(self._outage_timeout_s)
        while True:
            member = self._fleet.pick(request.conversation_id)
            try:
                if patience.is_out:
                    await self._see_well(member)
                    patience.well()
                return await self._once(member, fitted)
            except EngineUnreachableError as error:
                another = self._fleet.lost(member)
                patience.lost(error)
            if not another:
                await asyncio.sleep(RETRY_S)

    async def tokenize(self, text: str) -> I32:
        """See :class:`~longrein.engines.base.TokenizingEngine`; of the first server.

        Raises:
            EngineRouteError: it does not tokenize.
        """
        member = self._fleet.members[0]
        return np.array(await tokenized(member.server, member.model, text), dtype=np.int32)

    async def forget(self, conversation_id: str) -> None:
        """The servers drop what was not used for longest on their own."""

    async def close(self) -> None:
        """Close all connections; the servers drop what was asked on them, and live on."""
        await self._session.close()

    async def _see_well(self, member: Member) -> None:
        """Raise :class:`EngineUnreachableError` for a server that is out, or was started again and lacks its weights.

        Asked at once, it would compute a whole completion that nobody takes.
        """
        await member.server.healthy()
        label = await member.server.label_told()
        self._labels.versions([label] if label else [], member.server.url)

    async def _once(self, member: Member, request: EngineRequest) -> Completion:
        sampled = await member.sample(request)
        versions = self._labels.versions(sampled.labels, member.server.url)
        if not versions:
            raise EngineError(f"{member.server.url} does not say which weights sampled a completion")
        return Completion(
            token_ids=sampled.token_ids,
            # A greedy token was certain; vLLM gives its logprob before temperature.
            logprobs=sampled.logprobs if request.sampling.temperature else np.zeros_like(sampled.logprobs),
            finish_reason=sampled.finish_reason,
            min_policy_version=min(versions),
            max_policy_version=max(versions),
            prefill_tokens=request.prompt_ids.size - sampled.cached_tokens,
        )

    def _fitted(self, request: EngineRequest) -> EngineRequest:
        """The request with ``max_tokens`` cut to the room that is left."""
        ids, vocabulary, context = request.prompt_ids, self._info.vocab_size, self._info.context_length
        if self._session.closed:
            raise EngineError("this client of the vLLM servers was closed")
        refuse_malformed(request)
        if wrong := out_of_range(request.sampling):
            raise EngineRequestError(wrong)
        if ids.size == 0:
            raise EngineRequestError("the prompt is empty: an engine needs one token to decode from")
        if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
            raise EngineRequestError(f"the prompt has ids outside the vocabulary of {vocabulary}")
        room = context - ids.size
        if room < 1:
            raise ContextLengthError(f"a prompt of {ids.size} tokens leaves no room in a context of {context}")
        sampling = msgspec.structs.replace(request.sampling, max_tokens=min(room, request.sampling.max_tokens))
        return msgspec.structs.replace(request, sampling=sampling)
