"""Traces that OpenEnv recorded (``fetch_proxy_trace()``, ``fetch_training_trace()``) as ours, with their exact tokens.

Sources: ``TraceEntry`` in ``openenv.core.harness.rollout`` and ``TrainingTrace`` in ``openenv.core.harness.training``,
openenv 0.10. Conversations are put together by the gateway's own tree, so that roles and parents are found as for what
the gateway itself recorded. A prompt is never rendered anew: without its token ids, a trace cannot be trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, cast

import msgspec
import numpy as np

from longrein.errors import GatewayRequestError, TraceError
from longrein.gateway.completions import LOGPROB_SLACK
from longrein.gateway.dialect import Arrival, Caller, ChatRequest
from longrein.gateway.dialects.chat import ChatDialect
from longrein.gateway.tree import CallTree, Sampled
from longrein.types import F32, I32, Call, Completion, Message, Timing, Trace

STRING_ID = "token_id:"
"""How vLLM writes an id with ``--return-tokens-as-token-ids``."""
LARGEST_ID = 2**31 - 1


class RecordedOver(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a recording beside its entries."""

    session_id: str
    vocab_size: int
    min_policy_version: int
    """Of the weights at the session's start; none of its tokens is older."""
    max_policy_version: int
    """At its end."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A trace, and what of the recording is not in it."""

    trace: Trace
    unanswered: int
    """Requests without an answer: nothing was sampled for them."""


def trace_of_proxy(entries: Any, over: RecordedOver) -> Recorded:
    """OpenEnv's ``list[TraceEntry]`` as a trace. Auxiliary calls are found as among the gateway's own.

    Raises:
        TraceError: an entry is malformed, or has no token ids; the message names it.
    """
    return _trace(list(_listed(entries, "the proxy trace")), over, Caller())


def trace_of_training(training: Any, over: RecordedOver) -> Recorded:
    """OpenEnv's ``TrainingTrace`` as a trace. All of its calls are the agent's: whoever recorded them chose them.

    Raises:
        TraceError: a turn is malformed; the message names it.
    """
    caller = Caller(role="agent", evidence="OpenEnv's training trace holds the agent's calls")
    turns = _listed(getattr(training, "turns", training), "the training trace")
    return _trace([_fields(turn) for turn in turns], over, caller)


def _trace(entries: Sequence[Any], over: RecordedOver, caller: Caller) -> Recorded:
    reader = _Reader(over, caller)
    for number, entry in enumerate(entries):
        try:
            reader.read(number, entry)
        except TraceError as error:
            raise TraceError(f"entry {number} of {len(entries)} of the recorded trace: {error}") from error
    return Recorded(trace=reader.trace(), unanswered=reader.unanswered)


class _Reader:
    def __init__(self, over: RecordedOver, caller: Caller) -> None:
        self._over = over
        self._caller = caller
        self._tree = CallTree(over.session_id)
        self._dialect = ChatDialect()
        self._masks: dict[int, Any] = {}
        self.unanswered = 0

    def trace(self) -> Trace:
        trace = self._tree.snapshot()
        calls = tuple(msgspec.structs.replace(call, loss_mask=self._masks.get(call.call_id)) for call in trace.calls)
        return msgspec.structs.replace(trace, calls=calls)

    def read(self, number: int, entry: Any) -> None:
        if not isinstance(entry, Mapping):
            raise TraceError(f"it is {type(entry).__name__}, not a mapping")
        fields = cast("Mapping[str, Any]", entry)
        reply = _reply(fields, self._dialect)
        sampled = _ids(fields, ("completion_token_ids", "completion_tokens"), self._over.vocab_size)
        if reply is None and not sampled.size:
            self.unanswered += 1
            return
        if not sampled.size:
            raise TraceError("it has an answer and no completion_token_ids; have the engine return token ids")
        prompt = _ids(fields, ("prompt_token_ids",), self._over.vocab_size)
        if not prompt.size:
            raise TraceError(
                "it has no prompt_token_ids; a prompt that is rendered again is not what the engine saw, so have the "
                "recorder keep them"
            )
        mask = _completion_mask(fields, prompt.size, sampled.size)
        call_id = self._add(
            request=self._request(number, fields),
            prompt=prompt,
            completion=self._completion(fields, sampled),
            reply=reply or {"role": "assistant", "content": ""},
        )
        if mask is not None:
            self._masks[call_id] = mask

    def _request(self, number: int, fields: Mapping[str, Any]) -> ChatRequest:
        request = _mapping(fields, "request")
        messages, tools = _said(request.get("messages")), _said(request.get("tools"))
        if messages is None:
            messages = [{"role": "user", "content": f"(request {number} was not recorded)"}]
        body = {"messages": messages, "tools": tools}
        return msgspec.structs.replace(_decoded(self._dialect, body), caller=self._caller, dialect="recorded")

    def _completion(self, fields: Mapping[str, Any], sampled: I32) -> Completion:
        return Completion(
            token_ids=sampled,
            logprobs=_logprobs(fields, sampled.size),
            finish_reason="length" if _choice(fields).get("finish_reason") == "length" else "stop",
            min_policy_version=self._over.min_policy_version,
            max_policy_version=self._over.max_policy_version,
        )

    def _add(self, *, request: ChatRequest, prompt: I32, completion: Completion, reply: Message) -> int:
        tree = self._tree
        history = tree.history(request, 0)
        place = tree.place(request, history)
        delta = prompt
        if place.parent_id is not None:
            parent = tree.call(place.parent_id)
            stream = np.concatenate([tree.prompt_ids(place.parent_id), parent.completion.token_ids])
            if prompt.size > stream.size and np.array_equal(prompt[: stream.size], stream):
                delta = prompt[stream.size :]
            else:
                place = tree.root(history, "not_bridgeable")
        call_id = tree.add(
            Sampled(
                request=request,
                history=history,
                place=place,
                prompt_delta=delta,
                completion=completion,
                reply=reply,
                timing=Timing(started_at_s=0.0),
            )
        )
        tree.mark_delivered(call_id)
        return call_id


def conversation(path: Iterable[Call]) -> list[Message]:
    """All messages along a path of calls, the last reply with its tool calls included."""
    return [message for call in path for message in (*call.messages, call.reply)]


def _listed(entries: Any, what: str) -> list[Any]:
    if not isinstance(entries, (list, tuple)):
        raise TraceError(f"{what} is {type(entries).__name__}, not a list")
    return list(cast("Sequence[Any]", entries))


def _fields(turn: Any) -> Any:
    """A turn as a mapping; ``TrainingTurn`` is a pydantic model."""
    return turn.model_dump() if hasattr(turn, "model_dump") else turn


def _mapping(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = _said(fields.get(name))
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TraceError(f"{name} is {type(value).__name__}, not a mapping")
    return cast("Mapping[str, Any]", value)


def _said(value: Any) -> Any:
    """The value; ``None`` for an empty one, too: so recorders write what is missing. Arrays cannot say if they are."""
    empty = isinstance(value, str | list | tuple | dict) and len(cast("Sequence[Any]", value)) == 0
    return None if empty else cast(Any, value)


def _choice(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    choices: object = _said(_mapping(fields, "response").get("choices"))
    if choices is None:
        return {}
    choice: object = cast("Sequence[Any]", choices)[0] if isinstance(choices, (list, tuple)) else choices
    if not isinstance(choice, Mapping):
        raise TraceError(f"response.choices[0] is {type(choice).__name__}, not a mapping")
    return cast("Mapping[str, Any]", choice)


def _reply(fields: Mapping[str, Any], dialect: ChatDialect) -> Message | None:
    """The assistant's message, normalised; ``None`` where the request got no answer."""
    message = _choice(fields).get("message")
    if message is None:
        return None
    if not isinstance(message, Mapping):
        raise TraceError(f"response.choices[0].message is {type(message).__name__}, not a mapping")
    said = {**cast("Mapping[str, Any]", message), "role": "assistant"}
    return _decoded(dialect, {"messages": [said]}).messages[0]


def _decoded(dialect: ChatDialect, body: dict[str, Any]) -> ChatRequest:
    try:
        encoded = msgspec.json.encode(body, enc_hook=str)
        return dialect.decode(Arrival(path="/v1/chat/completions", body=encoded))
    except (GatewayRequestError, TypeError, ValueError, RecursionError) as error:
        raise TraceError(f"its messages are not a chat conversation ({error})") from error


def _ids(fields: Mapping[str, Any], names: tuple[str, ...], vocab_size: int) -> I32:
    """Token ids of the first field that has some: numbers, or ``"token_id:N"``."""
    for name in names:
        values = fields.get(name)
        if values is not None and not isinstance(values, (list, tuple)):
            raise TraceError(f"{name} is {type(values).__name__}, not a list")
        if values:
            return _as_ids(name, cast("Sequence[Any]", values), vocab_size)
    return np.empty(0, np.int32)


def _as_ids(name: str, values: Sequence[Any], vocab_size: int) -> I32:
    ids: list[int] = []
    for value in values:
        text = value[len(STRING_ID) :] if isinstance(value, str) and value.startswith(STRING_ID) else ""
        # Ten digits are more than the largest id has; Python refuses to read thousands.
        number = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else value
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < vocab_size:
            raise TraceError(
                f"{name} holds {_shown(value)}; token ids are numbers from 0 to {vocab_size - 1}, or "
                f"{STRING_ID}N (vLLM: --return-tokens-as-token-ids)"
            )
        ids.append(number)
    return np.asarray(ids, np.int32)


def _shown(value: Any) -> str:
    """A value for a message. Python writes neither numbers of thousands of digits nor lists of a thousand levels."""
    try:
        return f"{value!r:.40}"
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__}"


def _logprobs(fields: Mapping[str, Any], count: int) -> F32:
    values = fields.get("per_token_logps")
    if not isinstance(values, (list, tuple)) or len(cast("Sequence[Any]", values)) != count:
        found = len(cast("Sequence[Any]", values)) if isinstance(values, (list, tuple)) else "no"
        raise TraceError(f"{count} sampled tokens with {found} per_token_logps; each needs its own")
    listed = cast("Sequence[Any]", values)
    # Numbers as text, or true and false, would pass for numbers; so would one list in the place of another.
    odd = [value for value in listed if isinstance(value, bool) or not isinstance(value, Real)]
    if odd:
        raise TraceError(f"per_token_logps are not numbers: {_shown(odd[0])}; each of {count} tokens has one")
    try:
        logprobs = np.asarray(listed, np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise TraceError(f"per_token_logps are not numbers ({error})") from error
    # Written so that NaN fails it.
    if not (float(logprobs.max()) <= LOGPROB_SLACK and float(logprobs.min()) > -np.inf):
        raise TraceError(
            f"per_token_logps from {logprobs.min()} to {logprobs.max()}; only finite ones up to 0 make sense"
        )
    return logprobs


def _completion_mask(fields: Mapping[str, Any], prompt: int, sampled: int) -> Any:
    """Which sampled tokens may train, shape ``[sampled]``; ``None`` where all may."""
    values = fields.get("loss_mask")
    if values is None:
        return None
    listed = cast("Sequence[Any]", values) if isinstance(values, (list, tuple)) else ()
    flags = (int, float, np.bool_, np.number)
    if len(listed) != prompt + sampled or not all(isinstance(value, flags) and value in (0, 1) for value in listed):
        raise TraceError(f"loss_mask must hold {prompt + sampled} zeros and ones, for the prompt and the completion")
    mask = np.asarray(listed, np.bool_)
    if mask[:prompt].any():
        raise TraceError("loss_mask trains tokens of the prompt, which nobody sampled")
    return None if mask[prompt:].all() else mask[prompt:]
