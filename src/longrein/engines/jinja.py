"""A chat template as a function from messages to text.

``transformers`` copies everything that it hands to a template, twice, to guard it against rich objects. Ours comes out
of JSON, so the template that ``transformers`` compiled is called as it is where both are seen to write the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jinja2

from longrein.engines.tool_texts import ToolTexts
from longrein.types import Message, Tool

TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError),
)
"""What templates and ``renderers`` raise on conversations they cannot express (third-party code, so a wide net)."""
REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
"""What templates call a message's reasoning; ``transformers`` fills the first two from any."""


class TemplatedTokenizer(Protocol):
    """What is used of a ``transformers`` tokenizer."""

    chat_template: Any

    def apply_chat_template(self, conversation: list[Message], **kwargs: Any) -> Any:
        """Messages to text or ids."""
        ...


class Template(Protocol):
    """Messages to text."""

    def write(self, messages: list[Message], tools: list[Tool] | None, *, generation_prompt: bool) -> str:
        """Raises one of ``TEMPLATE_FAULTS`` when the template refuses the conversation."""
        ...


class PublicTemplate:
    """By ``apply_chat_template``."""

    def __init__(self, tokenizer: TemplatedTokenizer) -> None:
        self._tokenizer = tokenizer

    def write(self, messages: list[Message], tools: list[Tool] | None, *, generation_prompt: bool) -> str:
        """See :class:`Template`."""
        return self._tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=generation_prompt
        )


class CompiledTemplate:
    """The compiled template itself. Only for data made of JSON's own types."""

    def __init__(self, compiled: jinja2.Template, source: str, special_tokens: dict[str, str]) -> None:
        environment: Any = compiled.environment.overlay()
        self._tools = ToolTexts(environment.filters["tojson"])
        environment.filters = {**environment.filters, "tojson": self._tools.tojson}
        self._render: Callable[..., str] = environment.from_string(source).render
        self._special_tokens = special_tokens

    def write(self, messages: list[Message], tools: list[Tool] | None, *, generation_prompt: bool) -> str:
        """See :class:`Template`."""
        return self._render(
            messages=[_shown(message) for message in messages],
            tools=self._tools.known(tools) if tools else tools,
            documents=None,
            add_generation_prompt=generation_prompt,
            **self._special_tokens,
        )


def template_of(tokenizer: TemplatedTokenizer) -> Template:
    """The faster of the two that is known to write what ``transformers`` writes."""
    public = PublicTemplate(tokenizer)
    from transformers.utils import chat_template_utils

    # No public name leads to the compiled template; without the private one everything is right, only slower.
    compile_template: Any = getattr(chat_template_utils, "_compile_jinja_template", None)
    if compile_template is None or not isinstance(tokenizer.chat_template, str):
        return public
    untyped: Any = tokenizer
    compiled = compile_template(tokenizer.chat_template)
    quick = CompiledTemplate(compiled, tokenizer.chat_template, untyped.special_tokens_map)
    return quick if all(_written(quick, *probe) == _written(public, *probe) for probe in _PROBES) else public


def _shown(message: Message) -> Message:
    """What ``transformers`` makes of a message: no null fields, and reasoning by the names that templates read."""
    shown = {key: value for key, value in message.items() if value is not None}
    reasoning = next((shown[name] for name in REASONING_NAMES if name in shown), None)
    return shown if reasoning is None else {"thinking": reasoning, **shown, "reasoning_content": reasoning}


_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "<é> & 'quotes'",
        "parameters": {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]},
    },
}
_CALL: Message = {"id": "call00000", "type": "function", "function": {"name": "probe", "arguments": {"n": 1.5}}}
_USER: Message = {"role": "user", "content": "A <question>?\n"}
_CALLING: Message = {"role": "assistant", "content": "", "tool_calls": [_CALL], "reasoning_content": "A thought."}
_RESULT: Message = {"role": "tool", "content": "é", "tool_call_id": "call00000", "name": "probe"}
_PROBES: tuple[tuple[list[Message], list[Tool] | None], ...] = (
    ([_USER], None),
    ([{"role": "system", "content": "Rules."}, _USER, {"role": "assistant", "content": "An answer."}, _USER], None),
    ([_USER], [_TOOL]),
    ([{"role": "system", "content": "Rules."}, _USER, _CALLING, _RESULT], [_TOOL]),
)


def _written(template: Template, messages: list[Message], tools: list[Tool] | None) -> str:
    try:
        return template.write(messages, tools, generation_prompt=True)
    except TEMPLATE_FAULTS as error:
        return f"refused: {type(error).__name__}: {error}"
