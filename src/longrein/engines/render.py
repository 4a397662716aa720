"""Messages <-> token ids for one model, without torch.

Some 25 model families are written out by hand in the ``renderers`` library; every other model goes through its own
chat template (or the one that the run file brings).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol, cast

import msgspec
import numpy as np
import renderers
from renderers.base import MODEL_RENDERER_MAP, ParsedResponse, ParsedToolCall, Renderer
from renderers.configs import DefaultRendererConfig, config_from_name

from longrein.engines import tool_parsers
from longrein.engines.template import (
    TEMPLATE_FAULTS,
    ChatTokenizer,
    TemplateBridge,
    TemplateText,
    find_turn_end,
    for_template,
)
from longrein.errors import RenderError
from longrein.types import I32, Message, Tool

_create_renderer: Callable[..., Renderer] = cast("Any", renderers).create_renderer
# Reasoning that the prompt opened is found in its last few ids: no need to hand over 64k of them.
_PROMPT_TAIL = 512
_CONTEXT: list[Message] = [{"role": "user", "content": "A question."}]


class ParsedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call as the model wrote it."""

    name: str
    arguments: str
    """A JSON object, as text."""


class ParsedReply(msgspec.Struct, frozen=True, kw_only=True):
    """A completion as a message. A call that cannot be read stays visible in ``content``."""

    content: str
    reasoning_content: str
    tool_calls: tuple[ParsedCall, ...]


class Bridge(Protocol):
    """Extends a sampled stream by new messages, or says that it cannot."""

    @property
    def problems(self) -> dict[str, str]:
        """Kind of new message -> why it cannot be bridged."""
        ...

    def extend(
        self, prompt: I32, completion: I32, reply: Message, new: tuple[Message, ...], tools: tuple[Tool, ...]
    ) -> I32 | None:
        """Ids to append after prompt + completion, or ``None``."""
        ...


class FamilyBridge:
    """The bridge that ``renderers`` wrote for a model family."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self.problems: dict[str, str] = {}

    def extend(
        self, prompt: I32, completion: I32, reply: Message, new: tuple[Message, ...], tools: tuple[Tool, ...]
    ) -> I32 | None:
        """See :class:`Bridge`."""
        before = [*prompt[-_PROMPT_TAIL:].tolist(), *completion.tolist()]
        cut = len(before) - completion.size
        shown: Any = list(tools) or None
        try:
            messages: Any = for_template(list(new))
            bridged = self._renderer.bridge_to_next_turn(before[:cut], before[cut:], messages, tools=shown)
        except TEMPLATE_FAULTS:
            return None
        if bridged is None or bridged.token_ids[: len(before)] != before:
            return None
        return np.asarray(bridged.token_ids[len(before) :], dtype=np.int32)


class GenericBridge:
    """:class:`TemplateBridge` where the prompt itself does not matter."""

    def __init__(self, bridge: TemplateBridge) -> None:
        self._bridge = bridge
        self.problems = bridge.problems

    def extend(
        self, prompt: I32, completion: I32, reply: Message, new: tuple[Message, ...], tools: tuple[Tool, ...]
    ) -> I32 | None:
        """See :class:`Bridge`."""
        return self._bridge.extend(completion, reply, new, tools)


class NoBridge:
    """A template without a seam: every turn is rendered whole."""

    def __init__(self, reason: str) -> None:
        self.problems = {"user": reason, "tool": reason}

    def extend(
        self, prompt: I32, completion: I32, reply: Message, new: tuple[Message, ...], tools: tuple[Tool, ...]
    ) -> I32 | None:
        """Always ``None``."""
        return None


class ChatRenderer:
    """Turns conversations into the ids a model expects, and completions back into messages."""

    def __init__(
        self, tokenizer: ChatTokenizer, renderer: Renderer, bridge: Bridge, stop_token_ids: tuple[int, ...]
    ) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._bridge = bridge
        self.stop_token_ids = stop_token_ids
        """Ids that end an assistant turn."""

    @classmethod
    def load(
        cls, model: str, *, chat_template: str | None = None, tool_parser: str = "auto", renderer: str = "auto"
    ) -> ChatRenderer:
        """Load the tokenizer of a model folder or hub id.

        Args:
            model: what ``AutoTokenizer.from_pretrained`` takes.
            chat_template: text of a Jinja template that replaces the tokenizer's own.
            tool_parser: a name in :mod:`longrein.engines.tool_parsers` or ``renderers.parsers``; ``auto`` reads
                ``<tool_call>{json}</tool_call>`` as plain text. Only for models that ``renderers`` does not know.
            renderer: a name in ``renderers``; ``auto`` goes by the model's exact hub id.

        Raises:
            RenderError: no tokenizer there, no chat template, or an unknown name.
        """
        import transformers

        untyped: Any = transformers
        try:
            tokenizer = untyped.AutoTokenizer.from_pretrained(model)
        except (OSError, ValueError) as error:
            raise RenderError(f"no tokenizer can be loaded from {model!r}: {error}") from error
        return cls.of(tokenizer, chat_template=chat_template, tool_parser=tool_parser, renderer=renderer)

    @classmethod
    def of(
        cls,
        tokenizer: ChatTokenizer,
        *,
        chat_template: str | None = None,
        tool_parser: str = "auto",
        renderer: str = "auto",
    ) -> ChatRenderer:
        """The same for a tokenizer that is loaded already."""
        family = MODEL_RENDERER_MAP.get(tokenizer.name_or_path, "default") if renderer == "auto" else renderer
        if chat_template is not None:
            tokenizer.chat_template = chat_template
            family = "default"
        if family == "default":
            return cls._for_template(tokenizer, tool_parser)
        return cls._for_family(tokenizer, family)

    @classmethod
    def _for_family(cls, tokenizer: Any, family: str) -> ChatRenderer:
        try:
            renderer = _create_renderer(tokenizer, config_from_name(family))
        except TEMPLATE_FAULTS as error:
            raise RenderError(f"renderer={family!r} does not fit {tokenizer.name_or_path!r}: {error}") from error
        return cls(tokenizer, renderer, FamilyBridge(renderer), tuple(renderer.get_stop_token_ids()))

    @classmethod
    def _for_template(cls, tokenizer: Any, tool_parser: str) -> ChatRenderer:
        if not tokenizer.chat_template:
            raise RenderError(
                f"{tokenizer.name_or_path!r} has no chat template; give one in the run file "
                "(chat_template = path of a Jinja file), for instance a ChatML template that shows tools"
            )
        renderer = _create_renderer(tokenizer, DefaultRendererConfig(tool_parser=tool_parsers.resolve(tool_parser)))
        text = TemplateText(tokenizer)
        stops = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        try:
            turn_end = find_turn_end(tokenizer, text)
        except RenderError as error:
            return cls(tokenizer, renderer, NoBridge(str(error)), tuple(stops))
        bridge = GenericBridge(TemplateBridge(text, turn_end))
        return cls(tokenizer, renderer, bridge, tuple(dict.fromkeys([turn_end.token_id, *stops])))

    @property
    def vocab_size(self) -> int:
        """Ids that the tokenizer knows, added tokens included."""
        return len(self._tokenizer)

    @property
    def bridge_problems(self) -> dict[str, str]:
        """Kind of new message (``user``, ``tool``) -> why it starts a new branch each time. Empty is good."""
        return self._bridge.problems

    def render(self, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> I32:
        """The prompt of a whole conversation with the generation prompt, shape ``[n]``.

        Raises:
            RenderError: the template refuses the conversation.
        """
        return np.asarray(self._render(list(messages), tools, generation_prompt=True), dtype=np.int32)

    def bridge(
        self, *, prompt: I32, completion: I32, reply: Message, new: tuple[Message, ...], tools: tuple[Tool, ...]
    ) -> I32 | None:
        """Only the ids to append after ``prompt + completion`` so that the model answers ``new`` next.

        ``None`` where they cannot be proven; the caller renders the conversation whole.
        """
        return self._bridge.extend(prompt, completion, reply, new, tools)

    def parse(self, *, completion: I32, prompt: I32, tools: tuple[Tool, ...]) -> ParsedReply:
        """Read a completion. Without ``tools`` nothing is taken for a call."""
        shown: Any = list(tools) or None
        parsed = self._renderer.parse_response(
            self._without_stop(completion), tools=shown, prompt_ids=prompt[-_PROMPT_TAIL:].tolist()
        )
        return _as_reply(parsed, offered=bool(tools))

    def encode_reply(self, message: Message) -> I32:
        """The ids a model would sample to say ``message``, its end-of-turn token included, shape ``[n]``.

        Raises:
            RenderError: the template writes an assistant turn otherwise than after its generation prompt.
        """
        before = self._render(_CONTEXT, (), generation_prompt=True)
        whole = self._render([*_CONTEXT, message], (), generation_prompt=False)
        ends = [at for at, token in enumerate(whole) if token in self.stop_token_ids and at >= len(before)]
        if whole[: len(before)] != before or not ends:
            raise RenderError("this chat template cannot say the reply after its own generation prompt")
        return np.asarray(whole[len(before) : ends[-1] + 1], dtype=np.int32)

    def encode(self, text: str) -> I32:
        """Plain text to ids, no special tokens added."""
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)

    def decode(self, token_ids: I32) -> str:
        """Ids to text, special tokens shown."""
        return self._tokenizer.decode(token_ids.tolist(), skip_special_tokens=False)

    def _render(self, messages: list[Message], tools: tuple[Tool, ...], *, generation_prompt: bool) -> list[int]:
        offered: Any = list(tools) or None
        try:
            shown: Any = for_template(messages)
            return self._renderer.render_ids(shown, tools=offered, add_generation_prompt=generation_prompt)
        except TEMPLATE_FAULTS as error:
            raise RenderError(f"the chat template refuses this conversation: {error}") from error

    def _without_stop(self, completion: I32) -> list[int]:
        stops = np.flatnonzero(np.isin(completion, self.stop_token_ids))
        return completion[: stops[0]].tolist() if stops.size else completion.tolist()


def _as_reply(parsed: ParsedResponse, *, offered: bool) -> ParsedReply:
    calls = [call for call in parsed.tool_calls if offered and _usable(call)]
    unread = [call.raw for call in parsed.tool_calls if not (offered and _usable(call))]
    return ParsedReply(
        content="".join([parsed.content, *unread]),
        reasoning_content=parsed.reasoning_content or "",
        tool_calls=tuple(
            ParsedCall(name=call.name or "", arguments=json.dumps(call.arguments, ensure_ascii=False)) for call in calls
        ),
    )


def _usable(call: ParsedToolCall) -> bool:
    return bool(call.name) and isinstance(call.arguments, dict)
