"""A model's Jinja chat template as text, and the generic bridge that extends a sampled stream by it.

The bridge is the difference between the template rendered with a stand-in assistant turn, with and without the
new messages. It is proven in two steps: once per template at load (the seam tokenises alike on its own and in the
whole), and on every use (the new messages change nothing before the stand-in turn's end).
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import msgspec

from longrein.engines.jinja import TEMPLATE_FAULTS, template_of
from longrein.engines.recent import Recent, digest
from longrein.engines.segments import SegmentEncoder
from longrein.engines.tool_parsers import MAX_SHOWN_NESTING, nested_within
from longrein.errors import RenderError
from longrein.types import I32, Message, Tool

STAND_IN = "A stand-in reply."
HEADS = 64
"""Stand-in turns of which it is kept what the template writes for them; one for each set of tools and calls."""


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

    def get_vocab(self) -> dict[str, int]:
        """Tokens as they are spelled, added ones included -> ids."""
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
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        # Not JSON, an integer of too many digits, or nested too deeply: text, as the model wrote it.
        return arguments
    if not nested_within(value, MAX_SHOWN_NESTING):
        raise ValueError(f"arguments of a call are nested deeper than {MAX_SHOWN_NESTING} levels")
    return value


USER: Message = {"role": "user", "content": "A question."}


class TemplateText:
    """The template as a function from messages to text."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._template = template_of(tokenizer)
        self._encoder = SegmentEncoder(tokenizer)
        self.reads_the_clock = "strftime_now" in str(tokenizer.chat_template)
        """The same conversation may be written otherwise another day."""

    def render(self, messages: list[Message], tools: tuple[Tool, ...], *, generation_prompt: bool) -> str:
        """Raises :class:`RenderError` when the template refuses the conversation."""
        try:
            shown = for_template(messages)
            return self._template.write(shown, list(tools) or None, generation_prompt=generation_prompt)
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

    def encode(self, text: str) -> I32:
        """Text to ids, shape ``[n]``, no special tokens added. The array may be read-only."""
        return self._encoder.encode(text)


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
    ids: list[int] = text.encode(closing).tolist() if found else []
    if not ids or not (ids[0] in tokenizer.added_tokens_decoder or ids[0] in tokenizer.all_special_ids):
        raise RenderError("the chat template does not end an assistant turn with a special token")
    return TurnEnd(token_id=ids[0], text=tokenizer.decode([ids[0]], skip_special_tokens=False))


class _Turn(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of an assistant turn: all that what follows can depend on."""

    names: tuple[str, ...] = ()
    """Of the tools that it calls."""
    call_ids: tuple[str, ...] = ()
    """One a name."""
    thought: bool = False

    @classmethod
    def of(cls, reply: Message) -> _Turn:
        """The shape of a reply. Its calls keep their ids, which say whose results come next."""
        calls: list[dict[str, Any]] = reply.get("tool_calls") or []
        return cls(
            names=tuple(call["function"]["name"] for call in calls),
            call_ids=tuple(call["id"] for call in calls),
            thought=bool(reply.get("reasoning_content")),
        )

    def stand_in(self, call_ids: tuple[str, ...]) -> Message:
        """A turn of that shape."""
        message: Message = {"role": "assistant", "content": STAND_IN}
        if self.thought:
            message["reasoning_content"] = "Some thought."
        if self.names:
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
                for name, call_id in zip(self.names, call_ids, strict=True)
            ]
        return message


def _shape_of(turn: _Turn, tools: tuple[Tool, ...]) -> bytes:
    """A key for what a template writes up to the end of such a turn, ids aside. Raises :class:`RenderError`."""
    try:
        return digest((turn.names, turn.thought, tools))
    except TEMPLATE_FAULTS as error:
        raise RenderError(f"the tools cannot be written as JSON: {error}") from error


class TemplateBridge:
    """Extends prompt + completion by new messages, for any template with a seam.

    ``problems`` says, by kind of new message (``user`` or ``tool``), why that kind cannot be bridged; both absent
    means that everything can.
    """

    def __init__(self, text: TemplateText, turn_end: TurnEnd) -> None:
        self._text = text
        self._turn_end = turn_end
        self._heads: Recent[bytes, str] = Recent(0 if text.reads_the_clock else HEADS)
        self.problems: dict[str, str] = {}
        self._probe("user", _Turn(), {"role": "user", "content": "More."})
        called = _Turn(names=("probe",), call_ids=("call00000",))
        result: Message = {"role": "tool", "content": "A result.", "tool_call_id": "call00000", "name": "probe"}
        self._probe("tool", called, result)

    def extend(self, completion: I32, reply: Message, new: tuple[Message, ...], tools: tuple[Tool, ...]) -> I32 | None:
        """Ids to append after the completion, shape ``[n]``; ``None`` where nothing proves them right."""
        kinds = {"tool" if message["role"] == "tool" else "user" for message in new}
        if kinds & self.problems.keys() or any(message["role"] == "assistant" for message in new):
            return None
        try:
            tail = self._tail(_Turn.of(reply), new, tools)
        except RenderError:
            return None
        if not (completion.size and completion[-1] == self._turn_end.token_id):
            # The engine was cut (or stopped elsewhere): the template's own closing comes first.
            tail = self._turn_end.text + tail
        return self._text.encode(tail)

    def say(self, message: Message) -> I32:
        """Ids of an assistant message as a model samples it, its turn-end token last, shape ``[n]``.

        Raises:
            RenderError: the template writes an assistant turn otherwise than after its generation prompt.
        """
        said = self._text.reply(message)
        end = said.rfind(self._turn_end.text)
        if end < 0:
            raise RenderError("the chat template does not end this reply with its turn-end token")
        return self._text.encode(said[: end + len(self._turn_end.text)])

    def _tail(self, turn: _Turn, new: tuple[Message, ...], tools: tuple[Tool, ...]) -> str:
        """What the template writes after the turn-end token of a stand-in turn."""
        head = self._head(turn, tools)
        whole = self._text.render([USER, turn.stand_in(turn.call_ids), *new], tools, generation_prompt=True)
        if not whole.startswith(head):
            raise RenderError("new messages change what the template wrote before them")
        return whole[len(head) :]

    def _head(self, turn: _Turn, tools: tuple[Tool, ...]) -> str:
        """What it writes up to and including that token where nothing follows."""
        key = _shape_of(turn, tools)
        head = self._heads.get(key)
        if head is None:
            placeholders = tuple(f"call{at:05d}" for at in range(len(turn.names)))
            head = self._written(turn.stand_in(placeholders), tools)
            if any(placeholder in head for placeholder in placeholders):
                # This template shows the ids of calls, which are never the same twice.
                return self._written(turn.stand_in(turn.call_ids), tools)
            self._heads.put(key, head, 1)
        return head

    def _written(self, stand_in: Message, tools: tuple[Tool, ...]) -> str:
        without = self._text.render([USER, stand_in], tools, generation_prompt=False)
        end = without.rfind(self._turn_end.text)
        if end < without.rfind(STAND_IN):
            raise RenderError("the assistant turn has no end token")
        return without[: end + len(self._turn_end.text)]

    def _probe(self, kind: str, turn: _Turn, new: Message) -> None:
        try:
            tail = self._text.encode(self._tail(turn, (new,), ())).tolist()
            messages = [USER, turn.stand_in(turn.call_ids), new]
            whole = self._text.encode(self._text.render(messages, (), generation_prompt=True)).tolist()
        except RenderError as error:
            self.problems[kind] = str(error)
            return
        if whole[-len(tail) - 1 :] != [self._turn_end.token_id, *tail]:
            self.problems[kind] = "text after the turn-end token tokenises differently on its own"
