"""The compiled template writes what ``apply_chat_template`` writes, and where it does not, it is not used."""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils import chat_template_utils

from longrein.engines.jinja import CompiledTemplate, PublicTemplate, template_of
from longrein.engines.render import ChatRenderer
from longrein.engines.template import for_template
from longrein.engines.tool_texts import ToolTexts
from tests import tiny

HEAD = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
TAIL = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
THINKS = HEAD + "{{ m.thinking or '' }}|{{ m.reasoning_content or '' }}|{{ m.content }}" + TAIL
SHOWS_ALL = HEAD + "{{ m | tojson }} {{ tools | tojson }} {{ eos_token }} {{ bos_token }} {{ documents }}" + TAIL
TOOL_BY_TOOL = (
    "{% for t in tools or [] %}{{ t | tojson }}{{ t | tojson(indent=2) }}{{ t.function | tojson }}"
    "{{ t.function.parameters }}"
    "{{ t.function.parameters | tojson }}{{ t.function.parameters.items() | list | tojson }}{% endfor %}"
)
TEMPLATES = {
    "tools": tiny.CHATML,
    "thoughts": THINKS,
    "everything": SHOWS_ALL,
    "tool by tool": TOOL_BY_TOOL + HEAD + "{{ m.content }}{{ (m.tool_calls or []) | tojson }}" + TAIL,
}

text = st.text(st.characters(codec="utf-8"), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(
    lambda name, arguments: {
        "id": "c",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    },
    text,
    st.dictionaries(text, json_values, max_size=3),
)
messages = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": text}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.none() | text},
        optional={"reasoning_content": text, "tool_calls": st.lists(calls, min_size=1, max_size=2)},
    ),
    st.fixed_dictionaries({"role": st.just("tool"), "content": text, "tool_call_id": text}, optional={"name": text}),
)
tools = st.lists(
    st.builds(
        lambda name, parameters: {"type": "function", "function": {"name": name, "parameters": parameters}},
        text,
        st.dictionaries(text, json_values, max_size=3),
    ),
    max_size=2,
)


@cache
def both(name: str) -> tuple[Any, PublicTemplate]:
    tokenizer: Any = tiny.tokenizer(TEMPLATES[name])
    return template_of(tokenizer), PublicTemplate(tokenizer)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=60, deadline=None)
@given(st.lists(messages, min_size=1, max_size=4), tools, st.booleans())
def test_compiled_template_writes_the_same(name: str, said: list[Any], offered: list[Any], prompt: bool) -> None:
    quick, public = both(name)
    assert isinstance(quick, CompiledTemplate)
    shown = for_template(said)
    for tools_again in (offered, copy.deepcopy(offered)):
        assert quick.write(shown, tools_again or None, generation_prompt=prompt) == public.write(
            shown, offered or None, generation_prompt=prompt
        )


def test_tools_that_only_compare_equal_are_told_apart() -> None:
    quick, public = both("tool by tool")
    said = [{"role": "user", "content": "hi"}]
    for value in (1, 1.0, True, "1"):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"minimum": value}}}]
        assert quick.write(said, tools, generation_prompt=True) == public.write(said, tools, generation_prompt=True)


def test_tools_are_written_once() -> None:
    asked: list[Any] = []

    def plain(value: Any) -> str:
        asked.append(value)
        return json.dumps(value)

    texts = ToolTexts(plain)
    for number in range(3):
        [tool] = texts.known([{"function": {"name": "f"}}])
        assert texts.tojson(tool) == '{"function": {"name": "f"}}'
        assert texts.tojson(tool["function"]) == '{"name": "f"}'
        assert texts.tojson({"role": number}) == f'{{"role": {number}}}'
    assert len(asked) == 2 + 3


def test_without_the_private_name_everything_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(chat_template_utils, "_compile_jinja_template")
    tokenizer: Any = tiny.tokenizer()
    # transformers needs the name itself: the one that is asked for is all that must not be used.
    assert isinstance(template_of(tokenizer), PublicTemplate)


class RewritingTokenizer:
    """Its ``apply_chat_template`` does more than its template says."""

    def __init__(self) -> None:
        self._inner: Any = tiny.tokenizer()
        self.chat_template = self._inner.chat_template
        self.special_tokens_map = self._inner.special_tokens_map

    def apply_chat_template(self, conversation: list[Any], **kwargs: Any) -> Any:
        return "<bos>" + self._inner.apply_chat_template(conversation, **kwargs)


def test_a_tokenizer_that_does_more_than_its_template_is_asked_itself() -> None:
    template = template_of(RewritingTokenizer())
    assert isinstance(template, PublicTemplate)
    assert template.write([{"role": "user", "content": "x"}], None, generation_prompt=False).startswith("<bos>")


def test_prompts_are_looked_up_and_cannot_be_written_into() -> None:
    renderer = ChatRenderer.of(tiny.tokenizer())
    conversation = ({"role": "user", "content": "hi"},)
    first = renderer.render(conversation, ())
    assert renderer.render(({"role": "user", "content": "hi"},), ()) is first
    assert renderer.render(({"role": "user", "content": "ho"},), ()) is not first
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}
    assert renderer.render(conversation, (tool,)).size > first.size
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_a_template_that_reads_the_clock_is_rendered_each_time() -> None:
    clock = HEAD + "{{ strftime_now('%f') }}{{ m.content }}" + TAIL
    renderer = ChatRenderer.of(tiny.tokenizer(clock))
    conversation = ({"role": "user", "content": "hi"},)
    assert len({renderer.render(conversation, ()).tobytes() for _ in range(50)}) > 1
