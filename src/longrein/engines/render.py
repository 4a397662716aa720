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
from longrein.engines.jinja import TEMPLATE_FAULTS
from longrein.engines.parsed import PARSER_FAULTS, ParsedReply, as_content
from longrein.engines.recent import Recent, digest
from longrein.engines.replies import LibraryReplies, Replies, TextReplies
from longrein.engines.results import addressed, answers_only
from longrein.engines.template import ChatTokenizer, TemplateBridge, TemplateText, find_turn_end
from longrein.engines.tool_parsers import MAX_SHOWN_NESTING
from longrein.engines.turns import PROMPT_TAIL, FamilyTurns, SeamlessTurns, TemplateTurns, Turns
from longrein.engines.vocabulary import vocabulary_digest
from longrein.errors import RenderError
from longrein.types import I32, Message, Tool

PROMPT_TOKENS = 4 * 1024 * 1024
"""Tokens of rendered prompts that are kept, 16 MB."""

_create_renderer: Callable[..., Renderer] = cast("Any", renderers).create_renderer


class ChatRenderer:
    """Turns conversations into the ids a model expects, and completions back into messages."""

    def __init__(
        self, tokenizer: ChatTokenizer, turns: Turns, replies: Replies, stop_token_ids: tuple[int, ...]
    ) -> None:
        self._tokenizer = tokenizer
        self._turns = turns
        self._replies = replies
        self._prompts: Recent[bytes, I32] = Recent(PROMPT_TOKENS if turns.repeatable else 0)
        self.stop_token_ids = stop_token_ids
        """Ids that end an assistant turn."""
        self.longest_token = max(map(len, tokenizer.get_vocab()))
        """Characters that one token stands for, at most."""

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
        stops = tuple(renderer.get_stop_token_ids())
        return cls(tokenizer, FamilyTurns(renderer), LibraryReplies(renderer), stops)

    @classmethod
    def _for_template(cls, tokenizer: Any, tool_parser: str) -> ChatRenderer:
        if not tokenizer.chat_template:
            raise RenderError(
                f"{tokenizer.name_or_path!r} has no chat template; give one in the run file "
                "(chat_template = path of a Jinja file), for instance a ChatML template that shows tools"
            )
        parser = tool_parsers.resolve(tool_parser)
        replies: Replies = LibraryReplies(_create_renderer(tokenizer, DefaultRendererConfig(tool_parser=parser)))
        if parser == tool_parsers.HERMES_TEXT:
            replies = TextReplies(tokenizer, replies)
        text = TemplateText(tokenizer)
        stops = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        try:
            turn_end = find_turn_end(tokenizer, text)
        except RenderError as error:
            return cls(tokenizer, SeamlessTurns(text, tuple(stops), str(error)), replies, tuple(stops))
        turns = TemplateTurns(text, TemplateBridge(text, turn_end))
        return cls(tokenizer, turns, replies, tuple(dict.fromkeys([turn_end.token_id, *stops])))

    @property
    def vocabulary(self) -> str:
        """See :func:`~longrein.engines.vocabulary.vocabulary_digest`."""
        return vocabulary_digest(self._tokenizer.get_vocab())

    @property
    def vocab_size(self) -> int:
        """Ids that the tokenizer knows, added tokens included."""
        return len(self._tokenizer)

    @property
    def bridge_problems(self) -> dict[str, str]:
        """Kind of new message (``user``, ``tool``) -> why it starts a new branch each time. Empty is good."""
        return self._turns.problems

    def render(self, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> I32:
        """The prompt of a whole conversation with the generation prompt, shape ``[n]``, read-only.

        Prompts asked for lately are looked up: the members of a group share their first one.

        Raises:
            RenderError: the template refuses the conversation.
        """
        try:
            key = digest((messages, tools))
        except TEMPLATE_FAULTS as error:
            raise RenderError(f"this conversation cannot be written as JSON: {error}") from error
        ids = self._prompts.get(key)
        if ids is None:
            if not tool_parsers.nested_within(list(tools), MAX_SHOWN_NESTING):
                raise RenderError(f"tools are described by JSON nested deeper than {MAX_SHOWN_NESTING} levels")
            ids = self._turns.render(addressed(messages), tools)
            # Handed out again and again: whoever writes into it must fail.
            ids.flags.writeable = False
            self._prompts.put(key, ids, max(ids.size, 1))
        return ids

    def bridge(
        self, *, prompt: I32, completion: I32, reply: Message, new: tuple[Message, ...], tools: tuple[Tool, ...]
    ) -> I32 | None:
        """Only the ids to append after ``prompt + completion`` so that the model answers ``new`` next.

        ``None`` where they cannot be proven; the caller renders the conversation whole. Results must answer calls of
        the ``reply``; ids that none of them has go by place.
        """
        new = addressed((reply, *new))[1:]
        return self._turns.extend(prompt, completion, reply, new, tools) if answers_only(reply, new) else None

    def parse(self, *, completion: I32, prompt: I32, tools: tuple[Tool, ...]) -> ParsedReply:
        """Read a completion. Without ``tools`` nothing is taken for a call.

        Never fails: what the model's parser cannot read is plain content, as decoded.
        """
        said = self._without_stop(completion)
        try:
            return self._replies.read(said, prompt[-PROMPT_TAIL:].tolist(), tools)
        except PARSER_FAULTS:
            return as_content(self._tokenizer.decode(said, skip_special_tokens=False))

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
        ids: list[int] = completion.tolist()
        stops = [ids.index(stop) for stop in self.stop_token_ids if stop in ids]
        return ids[: min(stops, default=len(ids))]
