"""How kinds of models write turns: what they would sample for a reply, and how new messages extend a sampled stream."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from renderers.base import Renderer

from longrein.engines.jinja import TEMPLATE_FAULTS
from longrein.engines.template import USER, TemplateBridge, TemplateText, for_template
from longrein.errors import RenderError
from longrein.types import I32, Message, Tool

PROMPT_TAIL = 512
"""Reasoning that the prompt opened is found in its last few ids: no need to hand over 64k of them."""


class Turns(Protocol):
    """How one kind of model writes the turns of a conversation."""

    @property
    def problems(self) -> dict[str, str]:
        """Kind of new message -> why it cannot extend a sampled stream."""
        ...

    @property
    def repeatable(self) -> bool:
        """The same conversation is rendered the same at any time."""
        ...

    def render(self, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> I32:
        """The ids of a whole conversation with the generation prompt, shape ``[n]``. Raises :class:`RenderError`."""
        ...

    def say(self, message: Message) -> I32:
        """The ids a model would sample to say ``message``, shape ``[n]``. Raises :class:`RenderError`."""
        ...

    def extend(
        self, prompt: I32, completion: I32, reply: Message, new: tuple[Message, ...], tools: tuple[Tool, ...]
    ) -> I32 | None:
        """Ids to append after prompt + completion, or ``None`` where nothing proves them right."""
        ...


class FamilyTurns:
    """Turns of a model family that ``renderers`` wrote out."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self.problems: dict[str, str] = {}
        self.repeatable = True

    def render(self, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> I32:
        """See :class:`Turns`."""
        offered: Any = list(tools) or None
        try:
            shown: Any = for_template(list(messages))
            ids = self._renderer.render_ids(shown, tools=offered, add_generation_prompt=True)
        except TEMPLATE_FAULTS as error:
            raise RenderError(f"this model's renderer refuses this conversation: {error}") from error
        return np.asarray(ids, dtype=np.int32)

    def say(self, message: Message) -> I32:
        """See :class:`Turns`."""
        stops = self._renderer.get_stop_token_ids()
        try:
            whole: Any = for_template([USER, message])
            before = self._renderer.render_ids(whole[:-1], add_generation_prompt=True)
            ids = self._renderer.render_ids(whole)
        except TEMPLATE_FAULTS as error:
            raise RenderError(f"this model's renderer refuses the reply: {error}") from error
        ends = [at for at, token in enumerate(ids) if token in stops and at >= len(before)]
        if ids[: len(before)] != before or not ends:
            raise RenderError("this model's renderer cannot say the reply after its own generation prompt")
        return np.asarray(ids[len(before) : ends[-1] + 1], dtype=np.int32)

    def extend(
        self, prompt: I32, completion: I32, reply: Message, new: tuple[Message, ...], tools: tuple[Tool, ...]
    ) -> I32 | None:
        """See :class:`Turns`."""
        before = [*prompt[-PROMPT_TAIL:].tolist(), *completion.tolist()]
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


class TemplateTurns:
    """Turns of a chat template with a seam."""

    def __init__(self, text: TemplateText, bridge: TemplateBridge) -> None:
        self._text = text
        self._bridge = bridge
        self.problems = bridge.problems
        self.repeatable = not text.reads_the_clock

    def render(self, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> I32:
        """See :class:`Turns`."""
        return self._text.encode(self._text.render(list(messages), tools, generation_prompt=True))

    def say(self, message: Message) -> I32:
        """See :class:`Turns`."""
        return self._bridge.say(message)

    def extend(
        self, prompt: I32, completion: I32, reply: Message, new: tuple[Message, ...], tools: tuple[Tool, ...]
    ) -> I32 | None:
        """See :class:`Turns`."""
        return self._bridge.extend(completion, reply, new, tools)


class SeamlessTurns:
    """Turns of a template without a seam: every turn is rendered whole."""

    def __init__(self, text: TemplateText, end: tuple[int, ...], reason: str) -> None:
        self._text = text
        self._end = end
        self.problems = {"user": reason, "tool": reason}
        self.repeatable = not text.reads_the_clock

    def render(self, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> I32:
        """See :class:`Turns`."""
        return self._text.encode(self._text.render(list(messages), tools, generation_prompt=True))

    def say(self, message: Message) -> I32:
        """See :class:`Turns`. Ends with the tokenizer's end of text, if it has one."""
        said = self._text.encode(self._text.reply(message))
        return np.concatenate([said, np.asarray(self._end, dtype=np.int32)])

    def extend(
        self, prompt: I32, completion: I32, reply: Message, new: tuple[Message, ...], tools: tuple[Tool, ...]
    ) -> I32 | None:
        """Always ``None``."""
        return None
