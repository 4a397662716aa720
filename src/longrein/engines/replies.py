"""Completions as messages, for one model."""

from __future__ import annotations

from typing import Any, Protocol

from renderers.base import ParsedResponse, Renderer

from longrein.engines.direct import direct
from longrein.engines.parsed import ParsedReply, as_reply
from longrein.engines.recent import Recent
from longrein.engines.tool_parsers import OPEN, HermesText, TextTokenizer, split_hermes
from longrein.types import Tool

OPENINGS = 64
"""Ways in which prompts end of which the text is kept; most templates have one or two."""
THOUGHT = ("<think>", "</think>")


class Replies(Protocol):
    """Reads completions."""

    def read(self, said: list[int], prompt_tail: list[int], tools: tuple[Tool, ...]) -> ParsedReply:
        """Read a completion that is stripped of its stop token.

        Args:
            said: the ids.
            prompt_tail: the last ids of the prompt, which may have opened a thought.
            tools: what was offered.

        Raises:
            one of ``PARSER_FAULTS``, where it cannot be read.
        """
        ...


class SpecialTokenizer(TextTokenizer, Protocol):
    """What is used of a ``transformers`` tokenizer."""

    all_special_tokens: list[str]
    eos_token_id: int | None


class LibraryReplies:
    """Completions as the ``renderers`` library reads them."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def read(self, said: list[int], prompt_tail: list[int], tools: tuple[Tool, ...]) -> ParsedReply:
        """See :class:`Replies`."""
        shown: Any = list(tools) or None
        return as_reply(self._renderer.parse_response(said, tools=shown, prompt_ids=prompt_tail), offered=bool(tools))


class TextReplies:
    """Calls written as text (:func:`~longrein.engines.tool_parsers.split_hermes`), decoded once.

    Whatever has to do with thoughts goes to the library, which looks for them by id.
    """

    def __init__(self, tokenizer: SpecialTokenizer, library: LibraryReplies) -> None:
        self._tokenizer = direct(tokenizer)
        self._library = library
        self._special = tuple(token for token in tokenizer.all_special_tokens if token and token not in THOUGHT)
        self._turn_end = tokenizer.eos_token_id
        self._openings: Recent[tuple[int, ...], str] = Recent(OPENINGS)

    def read(self, said: list[int], prompt_tail: list[int], tools: tuple[Tool, ...]) -> ParsedReply:
        """See :class:`Replies`."""
        text = self._tokenizer.decode(said, skip_special_tokens=False)
        if any(tag in text for tag in THOUGHT) or self._may_think(prompt_tail):
            return self._library.read(said, prompt_tail, tools)
        split = split_hermes(text) if OPEN in text else HermesText(content=text, calls=())
        content = split.content
        for token in self._special:
            content = content.replace(token, "")
        return as_reply(ParsedResponse(content=content, tool_calls=list(split.calls)), offered=bool(tools))

    def _may_think(self, prompt_tail: list[int]) -> bool:
        """Whether a thought may have been opened since the last turn's end."""
        since = next((at for at, token in enumerate(reversed(prompt_tail)) if token == self._turn_end), None)
        opening = tuple(prompt_tail if since is None else prompt_tail[len(prompt_tail) - since :])
        text = self._openings.get(opening)
        if text is None:
            text = self._tokenizer.decode(list(opening), skip_special_tokens=False)
            self._openings.put(opening, text, 1)
        return THOUGHT[0] in text
