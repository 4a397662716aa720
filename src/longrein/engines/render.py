"""Messages <-> token ids for one model, without torch.

Some 25 model families are written out by hand in the ``renderers`` library; every other model goes through its own
chat template (or the one that the run file brings).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import renderers
from renderers.base import MODEL_RENDERER_MAP, Renderer
from renderers.configs import DefaultRendererConfig, config_from_name

from longrein.engines import tool_parsers
from longrein.engines.parsed import PARSER_FAULTS, ParsedReply, as_content, as_reply
from longrein.engines.template import (
    TEMPLATE_FAULTS,
    ChatTokenizer,
    TemplateBridge,
    TemplateText,
    find_turn_end,
    for_template,
)
from longrein.engines.turns import PROMPT_TAIL, FamilyTurns, SeamlessTurns, TemplateTurns, Turns
from longrein.errors import RenderError
from longrein.types import I32, Message, Tool

_create_renderer: Callable[..., Renderer] = cast("Any", renderers).create_renderer


class ChatRenderer:
    """Turns conversations into the ids a model expects, and completions back into messages."""

    def __init__(
        self, tokenizer: ChatTokenizer, renderer: Renderer, turns: Turns, stop_token_ids: tuple[int, ...]
    ) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._turns = turns
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
        """The same for a tokenizer that is loaded already. Its decoding is made verbatim."""
        # Some old tokenizer files ask for "ls ." to be decoded as "ls.".
        tokenizer.clean_up_tokenization_spaces = False
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
        return cls(tokenizer, renderer, FamilyTurns(renderer), tuple(renderer.get_stop_token_ids()))

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
            return cls(tokenizer, renderer, SeamlessTurns(text, tuple(stops), str(error)), tuple(stops))
        turns = TemplateTurns(TemplateBridge(text, turn_end))
        return cls(tokenizer, renderer, turns, tuple(dict.fromkeys([turn_end.token_id, *stops])))

    @property
    def vocab_size(self) -> int:
        """Ids that the tokenizer knows, added tokens included."""
        return len(self._tokenizer)

    @property
    def bridge_problems(self) -> dict[str, str]:
        """Kind of new message (``user``, ``tool``) -> why it starts a new branch each time. Empty is good."""
        return self._turns.problems

    def render(self, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> I32:
        """The prompt of a whole conversation with the generation prompt, shape ``[n]``.

        Raises:
            RenderError: the template refuses the conversation.
        """
        offered: Any = list(tools) or None
        try:
            shown: Any = for_template(list(messages))
            ids = self._renderer.render_ids(shown, tools=offered, add_generation_prompt=True)
        except TEMPLATE_FAULTS as error:
            raise RenderError(f"the chat template refuses this conversation: {error}") from error
        return np.asarray(ids, dtype=np.int32)

    def bridge(
        self, *, prompt: I32, completion: I32, reply: Message, new: tuple[Message, ...], tools: tuple[Tool, ...]
    ) -> I32 | None:
        """Only the ids to append after ``prompt + completion`` so that the model answers ``new`` next.

        ``None`` where they cannot be proven; the caller renders the conversation whole.
        """
        return self._turns.extend(prompt, completion, reply, new, tools)

    def parse(self, *, completion: I32, prompt: I32, tools: tuple[Tool, ...]) -> ParsedReply:
        """Read a completion. Without ``tools`` nothing is taken for a call.

        Never fails: what the model's parser cannot read is plain content, as decoded.
        """
        shown: Any = list(tools) or None
        ended = self._without_stop(completion)
        try:
            parsed = self._renderer.parse_response(ended, tools=shown, prompt_ids=prompt[-PROMPT_TAIL:].tolist())
            return as_reply(parsed, offered=bool(tools))
        except PARSER_FAULTS:
            return as_content(self._tokenizer.decode(ended, skip_special_tokens=False))

    def encode_reply(self, message: Message) -> I32:
        """The ids a model would sample to say ``message``, its end-of-turn token included, shape ``[n]``.

        Raises:
            RenderError: the template writes an assistant turn otherwise than after its generation prompt.
        """
        return self._turns.say(message)

    def encode(self, text: str) -> I32:
        """Plain text to ids, no special tokens added."""
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)

    def decode(self, token_ids: I32) -> str:
        """Ids to text, special tokens shown."""
        return self._tokenizer.decode(token_ids.tolist(), skip_special_tokens=False)

    def _without_stop(self, completion: I32) -> list[int]:
        stops = np.flatnonzero(np.isin(completion, self.stop_token_ids))
        return completion[: stops[0]].tolist() if stops.size else completion.tolist()
