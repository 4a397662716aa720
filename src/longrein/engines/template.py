"""A model's Jinja chat template as text, and the generic bridge that extends a sampled stream by it.

The bridge is the difference between the template rendered with a stand-in assistant turn, with and without the
new messages. It is proven in two steps: once per template at load (the seam tokenises alike on its own and in the
whole), and on every use (the new messages change nothing before the stand-in turn's end).
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import jinja2
import msgspec
import numpy as np

from longrein.errors import RenderError
from longrein.types import I32, Message, Tool

STAND_IN = "A stand-in reply."
TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    *(ValueError, TypeError, KeyError, AttributeError, AssertionError, RecursionError),
)
"""What templates and ``renderers`` raise on conversations they cannot express (third-party code, so a wide net)."""


class ChatTokenizer(Protocol):
    """What we use of a ``transformers`` tokenizer."""

    name_or_path: str
    chat_template: Any
    clean_up_tokenization_spaces: bool
    eos_token_id: int | None
    all_special_ids: list[int]
    added_tokens_decoder: dict[int, Any]

    def __len__(self) -> int:
        """Vocabulary with added tokens."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Text to ids."""
        ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Ids to text."""
        ...

    def apply_chat_template(self, conversation: list[Message], **kwargs: Any) -> Any:
        """Messages to text or ids."""
        ...


def for_template(messages: list[Message]) -> list[Message]:
    """Messages as templates expect them: arguments as objects, no null content."""
    return [_for_template(message) for message in messages]


def _for_template(message: Message) -> Message:
    shown = {**message, "content": message.get("content") or ""}
    if message.get("tool_calls"):
        shown["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _as_object(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
    return shown


def _as_object(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        # Not JSON, an integer of too many digits, or nested too deeply: text, as the model wrote it.
        return arguments


USER: Message = {"role": "user", "content": "A question."}


class TemplateText:
    """The template as a function from messages to text."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer

    def render(self, messages: list[Message], tools: tuple[Tool, ...], *, generation_prompt: bool) -> str:
        """Raises :class:`RenderError` when the template refuses the conversation."""
        try:
            return self._tokenizer.apply_chat_template(
                for_template(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=generation_prompt,
            )
        except TEMPLATE_FAULTS as error:
            raise RenderError(f"the chat template refuses this conversation: {error}") from error

    def reply(self, message: Message) -> str:
        """What the template writes for an assistant message after the generation prompt, to its end.

        Raises:
            RenderError: it writes the turn otherwise than after its generation prompt.
        """
        before = self.render([USER], (), generation_prompt=True)
        whole = self.render([USER, message], (), generation_prompt=False)
        if not whole.startswith(before):
            raise RenderError("this chat template cannot say the reply after its own generation prompt")
        return whole[len(before) :]

    def encode(self, text: str) -> list[int]:
        """Text to ids, no special tokens added."""
        return self._tokenizer.encode(text, add_special_tokens=False)


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The token that ends an assistant turn in a template."""

    token_id: int
    text: str


def find_turn_end(tokenizer: ChatTokenizer, text: TemplateText) -> TurnEnd:
    """The special token that the template writes right after an assistant's words.

    Raises:
        RenderError: there is none, so turns have no seam at which ids could be appended.
    """
    rendered = text.render([USER, {"role": "assistant", "content": STAND_IN}], (), generation_prompt=False)
    _, found, closing = rendered.rpartition(STAND_IN)
    ids = text.encode(closing) if found else []
    if not ids or not (ids[0] in tokenizer.added_tokens_decoder or ids[0] in tokenizer.all_special_ids):
        raise RenderError("the chat template does not end an assistant turn with a special token")
    return TurnEnd(token_id=ids[0], text=tokenizer.decode([ids[0]], skip_special_tokens=False))


_TOOL_CALL: dict[str, Any] = {"id": "call00000", "type": "function", "function": {"name": "probe", "arguments": "{}"}}


class TemplateBridge:
    """Extends prompt + completion by new messages, for any template with a seam.

    ``problems`` says, by kind of new message (``user`` or ``tool``), why that kind cannot be bridged; both absent
    means that everything can.
    """

    def __init__(self, text: TemplateText, turn_end: TurnEnd) -> None:
        self._text = text
        self._turn_end = turn_end
        self.problems: dict[str, str] = {}
        self._probe("user", {"role": "assistant", "content": STAND_IN}, {"role": "user", "content": "More."})
        self._probe(
            "tool",
            {"role": "assistant", "content": STAND_IN, "tool_calls": [_TOOL_CALL]},
            {"role": "tool", "content": "A result.", "tool_call_id": "call00000", "name": "probe"},
        )

    def extend(self, completion: I32, reply: Message, new: tuple[Message, ...], tools: tuple[Tool, ...]) -> I32 | None:
        """Ids to append after the completion, shape ``[n]``; ``None`` where nothing proves them right."""
        kinds = {"tool" if message["role"] == "tool" else "user" for message in new}
        if kinds & self.problems.keys() or any(message["role"] == "assistant" for message in new):
            return None
        try:
            tail = self._tail(_stand_in(reply, new), new, tools)
        except RenderError:
            return None
        if not (completion.size and completion[-1] == self._turn_end.token_id):
            # The engine was cut (or stopped elsewhere): the template's own closing comes first.
            tail = self._turn_end.text + tail
        return np.asarray(self._text.encode(tail), dtype=np.int32)

    def say(self, message: Message) -> I32:
        """Ids of an assistant message as a model samples it, its turn-end token last, shape ``[n]``.

        Raises:
            RenderError: the template writes an assistant turn otherwise than after its generation prompt.
        """
        said = self._text.reply(message)
        end = said.rfind(self._turn_end.text)
        if end < 0:
            raise RenderError("the chat template does not end this reply with its turn-end token")
        return np.asarray(self._text.encode(said[: end + len(self._turn_end.text)]), dtype=np.int32)

    def _tail(self, stand_in: Message, new: tuple[Message, ...], tools: tuple[Tool, ...]) -> str:
        """What the template writes after the turn-end token of a stand-in turn."""
        without = self._text.render([USER, stand_in], tools, generation_prompt=False)
        end = without.rfind(self._turn_end.text)
        if end < without.rfind(STAND_IN):
            raise RenderError("the assistant turn has no end token")
        end += len(self._turn_end.text)
        whole = self._text.render([USER, stand_in, *new], tools, generation_prompt=True)
        if whole[:end] != without[:end]:
            raise RenderError("new messages change what the template wrote before them")
        return whole[end:]

    def _probe(self, kind: str, stand_in: Message, new: Message) -> None:
        try:
            tail = self._text.encode(self._tail(stand_in, (new,), ()))
            whole = self._text.encode(self._text.render([USER, stand_in, new], (), generation_prompt=True))
        except RenderError as error:
            self.problems[kind] = str(error)
            return
        if whole[-len(tail) - 1 :] != [self._turn_end.token_id, *tail]:
            self.problems[kind] = "text after the turn-end token tokenises differently on its own"


def _stand_in(reply: Message, new: tuple[Message, ...]) -> Message:
    """A turn of the reply's shape. Its calls carry the ids that the new tool messages answer to."""
    stand_in: Message = {"role": "assistant", "content": STAND_IN}
    if reply.get("reasoning_content"):
        stand_in["reasoning_content"] = "Some thought."
    answered: list[str] = [message.get("tool_call_id", "") for message in new if message["role"] == "tool"]
    calls: list[dict[str, Any]] = reply.get("tool_calls") or []
    if calls or answered:
        padded = [*calls, *[_TOOL_CALL] * (len(answered) - len(calls))]
        ids: list[str] = [*answered, *[call["id"] for call in padded[len(answered) :]]]
        stand_in["tool_calls"] = [{**call, "id": call_id} for call, call_id in zip(padded, ids, strict=True)]
    return stand_in
