"""How a process reaches vLLM servers, and what is checked before it asks them for anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import aiohttp
import msgspec

from longrein.engines.base import EngineInfo
from longrein.engines.vllm.checks import Served, check_tokenizer, served, working_route
from longrein.engines.vllm.client import VllmEngine
from longrein.engines.vllm.fleet import Fleet, Member
from longrein.engines.vllm.labels import UNLABELLED, Labels
from longrein.engines.vllm.model import ModelFacts, model_facts
from longrein.engines.vllm.routes import Route
from longrein.engines.vllm.server import Server
from longrein.engines.vllm.urls import authorization
from longrein.errors import EngineError, EngineUnreachableError

CONNECT_TIMEOUT_S = 10.0
RETRY_S = 0.5


class VllmEngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Where vLLM servers listen, all of the same model. Picklable; an :class:`~longrein.engines.base.EngineSpec`."""

    urls: tuple[str, ...]
    """As :func:`~longrein.engines.vllm.urls.server_urls` gives them."""
    model: str
    """Folder or hub id of the model that they must serve: its tokenizer and configuration are compared."""
    context_length: int | None = None
    """Tokens of prompt and completion that the run needs; ``None`` takes what the servers have."""
    outage_timeout_s: float = 300.0
    """How long a request waits for a server that went away, and is started again by whoever started it."""
    health_timeout_s: float = 20.0
    """A server that does not answer ``/health`` within this counts as gone."""
    connect_timeout_s: float = 30.0
    """How long :meth:`connect` waits for a server that is just being started."""
    published: bool = False
    """Whether a trainer has published weights: then those that a server was started with are no policy of the run, and
    :meth:`connect` waits until it has got others."""

    async def connect(self) -> VllmEngine:
        """Open a client in the running event loop, once every server has shown that it can do what a run needs.

        Raises:
            EngineError: nothing answers; another model or tokenizer; a context that is too short; no token ids or no
                logprobs of the distribution that was sampled from. The message names the flag to start it with.
        """
        facts = model_facts(self.model)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        # The number of requests at once is the server's to bound.
        connector = aiohttp.TCPConnector(limit=0)
        session = aiohttp.ClientSession(timeout=timeout, connector=connector, headers=authorization())
        try:
            return await self._open(session, facts)
        except BaseException:
            await session.close()
            raise

    async def _open(self, session: aiohttp.ClientSession, facts: ModelFacts) -> VllmEngine:
        members: list[Member] = []
        contexts: list[int] = []
        labels = Labels()
        for url in self.urls:
            server = Server(url, session, self.health_timeout_s)
            labels.see(await self._ready(server))
            # Only now, since an adapter is there before the label.
            found = await self._checked(server, facts)
            route = await self._route(server, found, facts)
            members.append(Member(server=server, route=route, model=found.asked_as))
            contexts.append(found.context_length)
        info = EngineInfo(model=self.model, context_length=self._context(contexts), vocab_size=facts.vocab_size)
        return VllmEngine(
            info=info,
            fleet=Fleet(members),
            labels=labels,
            session=session,
            outage_timeout_s=self.outage_timeout_s,
        )

    async def _route(self, server: Server, found: Served, facts: ModelFacts) -> Route:
        try:
            async with asyncio.timeout(self.outage_timeout_s):
                return await working_route(server, found.asked_as, facts)
        except TimeoutError as error:
            raise EngineError(
                f"{server.url} is well, but sampled not one token within {self.outage_timeout_s:g} s; if an update "
                "that was cut off left it paused, the next run's first weights or POST /resume have it go on"
            ) from error

    async def _ready(self, server: Server) -> str:
        """The label of the server's weights, once it has some that this client may sample with."""
        give_up_s = time.monotonic() + self.connect_timeout_s
        while True:
            try:
                await server.healthy()
                label = await server.label()
                if label != UNLABELLED or not self.published:
                    return label
                problem = f"{server.url} was started again and has not got the run's weights back"
            except EngineUnreachableError as error:
                problem = str(error)
            if time.monotonic() > give_up_s:
                raise EngineError(f"{problem}; start it, or correct the URL. Waited {self.connect_timeout_s:g} s.")
            await asyncio.sleep(RETRY_S)

    async def _checked(self, server: Server, facts: ModelFacts) -> Served:
        found = await served(server)
        if self.context_length and found.context_length < self.context_length:
            raise EngineError(
                f"{server.url} has a context of {found.context_length} tokens, the run needs {self.context_length}; "
                f"start it with --max-model-len {self.context_length}, or lower the run's context_length"
            )
        await check_tokenizer(server, found, facts)
        return found

    def _context(self, found: Sequence[int]) -> int:
        return min(found) if self.context_length is None else self.context_length
