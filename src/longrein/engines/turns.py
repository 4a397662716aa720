"""How kinds of models write turns: what they would sample for a reply, and how new messages extend a sampled stream."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from renderers.base import Renderer

from longrein.engines.template import TEMPLATE_FAULTS, USER, TemplateBridge, TemplateText, for_template
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

    def __init__(self, bridge: TemplateBridge) -> None:
        self._bridge = bridge
        self.problems = bridge.problems

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

    def say(self, message: Message) -> I32:
        """See :class:`Turns`. Ends with the tokenizer's end of text, if it has one."""
        return np.asarray([*self._text.encode(self._text.reply(message)), *self._end], dtype=np.int32)

    def extend(
        self, prompt: I32, completion: I32, reply: Message, new: tuple[Message, ...], tools: tuple[Tool, ...]
    ) -> I32 | None:
        """Always ``None``."""
        return None
