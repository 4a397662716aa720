"""The engine as other processes see it. Imports no torch, so that a rollout worker stays light."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import numpy as np

from longrein.engines.base import EngineInfo, EngineRequest, OnToken, SampledToken
from longrein.engines.local import wire
from longrein.engines.request_checks import refuse_malformed
from longrein.errors import ContextLengthError, EngineError, EngineRequestError
from longrein.types import Completion

MOST_AT_ONCE = 1024
"""Requests of one client that the engine has, running or waiting; further ones wait here, in order."""
_DECODER: msgspec.msgpack.Decoder[wire.ToClient] = msgspec.msgpack.Decoder(wire.ToClient)


class LocalEngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Where a running embedded engine listens. Picklable; an :class:`~longrein.engines.base.EngineSpec`."""

    socket_path: str
    model: str

    async def connect(self) -> LocalEngine:
        """Open a client in the running event loop.

        Raises:
            EngineError: nothing answers at the socket.
        """
        try:
            reader, writer = await asyncio.open_unix_connection(self.socket_path)
        except OSError as error:
            raise self._silent(error) from error
        try:
            hello = await _read_frame(reader)
        except (OSError, EOFError) as error:
            writer.close()
            raise self._silent(error) from error
        except msgspec.DecodeError as error:
            writer.close()
            raise EngineError(f"{self.socket_path} is not an embedded engine of this version: {error}") from error
        if not isinstance(hello, wire.Hello):
            writer.close()
            raise EngineError(f"{self.socket_path} is not an embedded engine of this version: it sent {hello}")
        return LocalEngine(self, hello.info, reader, writer)

    def _silent(self, error: Exception) -> EngineError:
        return EngineError(
            f"no embedded engine for {self.model} answers at {self.socket_path} ({error}); "
            "it was stopped or has died: see what the process that owns the weights reported"
        )


class LocalEngine:
    """An async client of one embedded engine; an :class:`~longrein.engines.base.Engine`.

    Requests of any number of tasks share the one connection.
    """

    def __init__(
        self, spec: LocalEngineSpec, info: EngineInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._spec = spec
        self._info = info
        self._writer = writer
        self._calls = itertools.count()
        self._pending: dict[int, asyncio.Future[wire.Reply]] = {}
        self._listeners: dict[int, OnToken] = {}
        self._room = asyncio.Semaphore(MOST_AT_ONCE)
        self._gone = ""
        self._listener = asyncio.create_task(self._listen(reader))

    async def info(self) -> EngineInfo:
        """What the engine said of its model. Raises :class:`EngineError` when it is gone."""
        self._refuse_if_gone()
        return self._info

    async def generate(self, request: EngineRequest) -> Completion:
        """Sample one completion; see :meth:`longrein.engines.base.Engine.generate`."""
        refuse_malformed(request)
        self._refuse_if_gone()
        async with self._room:
            self._refuse_if_gone()
            return await self._answered(next(self._calls), request)

    async def generate_heard(self, request: EngineRequest, on_token: OnToken) -> Completion:
        """The same, token by token; see :meth:`longrein.engines.base.HeardEngine.generate_heard`."""
        refuse_malformed(request)
        self._refuse_if_gone()
        async with self._room:
            self._refuse_if_gone()
            call = next(self._calls)
            self._listeners[call] = on_token
            self._send(wire.Watch(call=call))
            try:
                return await self._answered(call, request)
            finally:
                del self._listeners[call]

    async def _answered(self, call: int, request: EngineRequest) -> Completion:
        future: asyncio.Future[wire.Reply] = asyncio.get_running_loop().create_future()
        self._pending[call] = future
        self._send(
            wire.Generate(
                call=call,
                conversation_id=request.conversation_id,
                prompt=np.ascontiguousarray(request.prompt_ids, dtype=np.int32).tobytes(),
                sampling=request.sampling,
            )
        )
        try:
            reply = await future
        finally:
            # Still pending here means that the awaiting task was cancelled.
            if self._pending.pop(call, None) is not None:
                self._send(wire.Cancel(call=call))
        return _completion(reply)

    async def forget(self, conversation_id: str) -> None:
        """Free what is cached for a conversation. Unknown ids, and an engine that is gone, are ignored."""
        self._send(wire.Forget(conversation_id=conversation_id))

    async def close(self) -> None:
        """Close this client; its pending requests are freed. The engine lives on with its owner."""
        self._gone = self._gone or "this client was closed"
        self._listener.cancel()
        await asyncio.gather(self._listener, return_exceptions=True)
        self._writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                reply = await _read_frame(reader)
                if isinstance(reply, wire.Sampled):
                    self._tell(reply)
                elif not isinstance(reply, wire.Hello):
                    self._resolve(reply)
        except (OSError, EOFError):
            self._gone = self._gone or "its process died or was stopped"
        except msgspec.DecodeError as error:
            # The stream cannot be trusted any more.
            self._gone = self._gone or f"it sent what this client cannot read ({error})"
        finally:
            # A bug of ours is no reason to wait for ever.
            self._gone = self._gone or "nobody listens to it any more"
            self._fail_pending()

    def _resolve(self, reply: wire.Reply) -> None:
        # A reply that crosses our cancellation finds nobody waiting.
        future = self._pending.pop(reply.call, None)
        if future is not None and not future.done():
            future.set_result(reply)

    def _tell(self, sampled: wire.Sampled) -> None:
        token_ids = np.frombuffer(sampled.token_ids, dtype=np.int32).tolist()
        logprobs = np.frombuffer(sampled.logprobs, dtype=np.float32).tolist()
        for call, token_id, logprob in zip(sampled.calls, token_ids, logprobs, strict=True):
            # A token that crosses our cancellation finds nobody waiting.
            if call in self._listeners:
                token = SampledToken(token_id=token_id, logprob=logprob, policy_version=sampled.policy_version)
                self._listeners[call](token)

    def _fail_pending(self) -> None:
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(self._gone_error())

    def _send(self, frame: wire.Request) -> None:
        if not self._gone and not self._writer.is_closing():
            self._writer.write(wire.pack(frame))

    def _refuse_if_gone(self) -> None:
        if self._gone:
            raise self._gone_error()

    def _gone_error(self) -> EngineError:
        return EngineError(
            f"the embedded engine for {self._spec.model} went away: {self._gone or 'this client was closed'}"
        )


async def _read_frame(reader: asyncio.StreamReader) -> wire.ToClient:
    size = int.from_bytes(await reader.readexactly(wire.HEADER_BYTES), "little")
    return _DECODER.decode(await reader.readexactly(size))


def _completion(reply: wire.Reply) -> Completion:
    match reply:
        case wire.Done():
            return _done(reply)
        case wire.RefusedContext():
            raise ContextLengthError(reply.message)
        case wire.RefusedRequest():
            raise EngineRequestError(reply.message)
        case wire.Failed():
            raise EngineError(reply.message)


def _done(reply: wire.Done) -> Completion:
    try:
        token_ids = np.frombuffer(reply.token_ids, dtype=np.int32)
        logprobs = np.frombuffer(reply.logprobs, dtype=np.float32)
    except ValueError as error:
        raise EngineError(f"the embedded engine's completion cannot be read: {error}") from error
    return Completion(
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=reply.finish_reason,
        min_policy_version=reply.min_policy_version,
        max_policy_version=reply.max_policy_version,
        prefill_tokens=reply.prefill_tokens,
    )
