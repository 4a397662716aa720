"""OpenEnv's ``ModelStep``, answered by the gateway's own code for HTTP requests, so capture is in one place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from longrein.errors import GatewayRequestError, LongreinError, PromptTooLongError
from longrein.gateway.dialect import Arrival, ChatReply, ChatRequest
from longrein.gateway.dialects.chat import SAMPLING, ChatDialect
from longrein.gateway.gateway import Gateway
from longrein.gateway.reply import limit_reply
from longrein.sessions.leash import Leash
from longrein.sessions.openenv_types import LLMResponse, ModelStepResult, given
from longrein.sessions.tool_answers import with_every_call_answered
from longrein.types import Message


class GatewayModelStep:
    """Called in the thread of an adapter's loop; asks in the event loop's.

    When the model cannot be asked any more (no time, no budget, no room in the context), the answer is one that nobody
    sampled, so that any loop ends of itself and what it has done is not lost.
    """

    def __init__(self, *, gateway: Gateway, session_id: str, ends_at_s: float, leash: Leash) -> None:
        self._gateway = gateway
        self._session_id = session_id
        self._ends_at_s = ends_at_s
        self._leash = leash
        self._loop = asyncio.get_running_loop()
        self._dialect = ChatDialect()
        self._said: list[_Said] = []
        self.timed_out = False
        self.cut_short = False
        """The last answer ends in the middle, or nobody sampled it."""
        self.refusal: GatewayRequestError | None = None
        """Why the gateway would not answer."""
        self.bug: Exception | None = None
        """What went wrong in here and is nobody else's fault."""

    def __call__(self, messages: list[Message], tools: Sequence[Any], sampling: dict[str, Any]) -> ModelStepResult:
        """One turn of the model.

        Args:
            messages: the conversation in OpenAI form.
            tools: as MCP describes them, with ``name``, ``description`` and ``input_schema``.
            sampling: ``max_tokens`` counts; all else is recorded as asked for, and sampled as the run says.

        Raises:
            GatewayRequestError: the template refuses the conversation, or the engine has failed.
        """
        asking = self._ask(list(messages), list(tools), dict(sampling))
        return self._leash.wait(asyncio.run_coroutine_threadsafe(asking, self._loop))

    def without_unsampled(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation without a closing answer that nobody sampled."""
        said = self._said[-1] if self._said else None
        if said is None or said.sampled or not messages or messages[-1] != said.shown:
            return list(messages)
        return list(messages[:-1])

    async def _ask(self, messages: list[Message], tools: list[Any], sampling: dict[str, Any]) -> ModelStepResult:
        try:
            reply = await self._reply(self._request(messages, tools, sampling))
            return self._result(reply)
        except GatewayRequestError as error:
            self.refusal = error
            raise
        except LongreinError:
            raise
        except Exception as error:
            self.bug = error
            raise

    def _request(self, messages: list[Message], tools: list[Any], sampling: dict[str, Any]) -> ChatRequest:
        try:
            body = {
                **{name: sampling[name] for name in SAMPLING if sampling.get(name) is not None},
                "messages": with_every_call_answered([self._echo(message) for message in messages]),
                "tools": [_tool(tool) for tool in tools],
            }
            encoded = msgspec.json.encode(body, enc_hook=str)
        except (LookupError, AttributeError, TypeError, ValueError, RecursionError) as error:
            raise GatewayRequestError(
                f"the loop's messages or tools are not in OpenAI's or MCP's form ({type(error).__name__}: {error})",
                status=400,
                code="invalid_request",
            ) from error
        return self._dialect.decode(Arrival(path="/v1/chat/completions", body=encoded))

    def _echo(self, message: Message) -> Message:
        """What we said as we said it: OpenEnv's types have no reasoning, and take ``None`` for no text."""
        if message.get("role") != "assistant":
            return message
        return next((said.message for said in reversed(self._said) if said.shown == message), message)

    async def _reply(self, request: ChatRequest) -> ChatReply:
        try:
            async with asyncio.timeout_at(self._ends_at_s):
                return await self._gateway.complete(self._session_id, request)
        except TimeoutError:
            self.timed_out = True
            return limit_reply("time")
        except PromptTooLongError:
            return limit_reply("context")

    def _result(self, reply: ChatReply) -> ModelStepResult:
        types = given()
        message = reply.message
        wanted: list[dict[str, Any]] = message.get("tool_calls") or []
        calls = [
            types.tool_call(
                id=call["id"], name=call["function"]["name"], args=json.loads(call["function"]["arguments"])
            )
            for call in wanted
        ]
        sampled = reply.completion_tokens > 0
        self.cut_short = not sampled or (reply.finish_reason == "length" and not calls)
        response: LLMResponse = types.llm_response(content=message.get("content") or "", tool_calls=calls)
        self._said.append(_Said(message=message, shown=response.to_message_dict(), sampled=sampled))
        return types.model_step_result(response=response, **self._tokens(message))

    def _tokens(self, message: Message) -> dict[str, Any]:
        """The exact tokens of the call that this message came from; nothing where nobody sampled it."""
        trace = self._gateway.trace(self._session_id)
        for call in reversed(trace.calls):
            if call.reply is message:
                return {
                    "prompt_ids": trace.prompt_ids(call).tolist(),
                    "completion_ids": call.completion.token_ids.tolist(),
                    "logprobs": call.completion.logprobs.tolist(),
                }
        return {}


class _Said(msgspec.Struct, frozen=True, kw_only=True):
    message: Message
    """The gateway's."""
    shown: Message
    """What the loop made of it."""
    sampled: bool


def _tool(tool: Any) -> dict[str, Any]:
    """A tool in OpenAI form; OpenEnv's loops pass objects, some adapters plain dictionaries."""
    if not isinstance(tool, dict):
        return _function(tool.name, tool.description, tool.input_schema)
    fields = cast("dict[str, Any]", tool)
    if "function" in fields:
        return fields
    schema = fields.get("input_schema", fields.get("inputSchema"))
    return _function(fields["name"], fields.get("description"), schema)


def _function(name: str, description: str | None, parameters: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": description or "", "parameters": parameters or {}},
    }
