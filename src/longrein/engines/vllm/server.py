"""One server as a client sees it: requests, and whether it is alive while one of them takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiohttp
import msgspec

from longrein.engines.vllm.answers import Answer
from longrein.engines.vllm.labels import UNLABELLED
from longrein.errors import EngineError, EngineUnreachableError

T = TypeVar("T")
PROBE_EVERY_S = 20.0
"""A request that has taken this long is waited for only while the server says that it is well."""


class Server:
    """One base URL. Requests of any number of tasks share the session's connections.

    Args:
        url: base URL.
        session: owned by the caller.
        health_timeout_s: a server that does not answer ``/health`` within this is wedged.
    """

    def __init__(self, url: str, session: aiohttp.ClientSession, health_timeout_s: float) -> None:
        self.url = url
        self._session = session
        self._health_timeout = aiohttp.ClientTimeout(total=health_timeout_s)

    async def post(self, path: str, body: object, *, session: str = "") -> Answer:
        """Send JSON. Cancelling closes the connection, which has the server drop the request.

        Args:
            path: begins with a slash.
            body: anything that msgspec encodes.
            session: requests of one session go to the same replica of a server that has several.

        Raises:
            EngineUnreachableError: no connection, or one that broke.
        """
        headers = {"Content-Type": "application/json"} | ({"X-Session-ID": session} if session else {})
        return await self._send("POST", path, data=msgspec.json.encode(body), headers=headers)

    async def get(self, path: str) -> Answer:
        """Raises :class:`EngineUnreachableError`, also where there is no answer in time."""
        return await self._send("GET", path, timeout=self._health_timeout)

    async def label(self) -> str:
        """What the server calls its present weights; the unlabelled name where it cannot tell."""
        return await self.label_told() or UNLABELLED

    async def label_told(self) -> str:
        """The same; empty where it cannot tell."""
        answer = await self.get("/weight_info")
        if answer.no_route:
            return ""
        if not answer.ok:
            answer.refuse()
        return str(answer.field("weight_version"))

    async def healthy(self) -> None:
        """Raises :class:`EngineUnreachableError` for a server that is not, or does not say so in time."""
        answer = await self.get("/health")
        if not answer.ok:
            raise EngineUnreachableError(f"{self.url}/health answered {answer.status}; see the server's log")

    async def watched(self, asked: Coroutine[Any, Any, T]) -> T:
        """The result of a request, however long it takes, as long as the server is well meanwhile.

        Raises:
            EngineUnreachableError: the server stopped answering; the request is dropped.
            EngineError: what ``asked`` raises. From a server that is no longer well, that is an outage.
        """
        task = asyncio.ensure_future(asked)
        try:
            while not (await asyncio.wait({task}, timeout=PROBE_EVERY_S))[0]:
                await self.healthy()
            return task.result()
        except EngineUnreachableError:
            raise
        except EngineError as error:
            if type(error) is EngineError:
                await self.healthy()
            raise
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _send(self, method: str, path: str, **options: Any) -> Answer:
        try:
            async with self._session.request(method, self.url + path, **options) as response:
                return Answer(url=self.url, path=path, status=response.status, body=await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineUnreachableError(
                f"no answer from the vLLM server at {self.url}{path} ({type(error).__name__}: {error}); see whether it "
                "runs"
            ) from error
