from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.engines.template import TemplateBridge, TemplateText, find_turn_end
from longrein.engines.tool_parsers import split_hermes
from longrein.types import Message
from tests import tiny

EXAMPLES = Path(__file__).parents[2] / "examples"
TOKENIZER = tiny.tokenizer((EXAMPLES / "smollm2/chat_template.jinja").read_text())


def _agent() -> Any:
    spec = importlib.util.spec_from_file_location("bash_agent", EXAMPLES / "bash_agent.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


AGENT = _agent()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
COMMAND = TEXT.map(
    lambda command: {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "bash", "arguments": {"command": command}}}
        ],
    }
)
OUTPUT = TEXT.map(lambda text: {"role": "tool", "tool_call_id": "c", "content": text})
WORDS = TEXT.map(lambda text: {"role": "assistant", "content": text})
USER = TEXT.map(lambda text: {"role": "user", "content": text})
ROUND = st.tuples(COMMAND, OUTPUT) | st.tuples(WORDS, USER)
CONVERSATION = st.tuples(USER, st.lists(ROUND, max_size=4), WORDS | COMMAND).map(
    lambda parts: [{"role": "system", "content": AGENT.SYSTEM}, parts[0], *(m for r in parts[1] for m in r), parts[2]]
)


def render(messages: list[Message], *, prompt: bool = False) -> str:
    return TOKENIZER.apply_chat_template(messages, tools=[AGENT.BASH], tokenize=False, add_generation_prompt=prompt)  # pyright: ignore


@settings(deadline=None, max_examples=100)
@given(messages=CONVERSATION)
def test_every_prompt_is_a_prefix_of_what_comes_later(messages: list[Message]) -> None:
    whole = render(messages)
    for length in range(1, len(messages)):
        following = messages[length]["role"] == "assistant"
        assert whole.startswith(render(messages[:length], prompt=following))


@settings(deadline=None, max_examples=100)
@given(message=COMMAND)
def test_calls_are_written_as_the_parser_reads_them(message: Message) -> None:
    history = [{"role": "user", "content": "q"}]
    written = render([*history, message]).removeprefix(render(history, prompt=True)).removesuffix("<|im_end|>\n")
    arguments = message["tool_calls"][0]["function"]["arguments"]
    if "</tool_call>" not in arguments["command"]:
        split = split_hermes(written)
        assert (split.content, [(call.name, call.arguments) for call in split.calls]) == ("", [("bash", arguments)])
    as_text = {**message["tool_calls"][0]["function"], "arguments": json.dumps(arguments, ensure_ascii=False)}
    told = {**message, "tool_calls": [{**message["tool_calls"][0], "function": as_text}]}
    assert render([*history, told]) == render([*history, message])


def test_the_generic_bridge_can_extend_it() -> None:
    text = TemplateText(TOKENIZER)  # pyright: ignore
    bridge = TemplateBridge(text, find_turn_end(TOKENIZER, text))  # pyright: ignore
    assert bridge.problems == {}


def test_without_tools_it_is_plain_chatml() -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    rendered = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    assert TOKENIZER.apply_chat_template(messages[1:], tokenize=False) == "<|im_start|>user\nU<|im_end|>\n"


def test_tools_are_shown_in_a_line_each() -> None:
    assert render([{"role": "user", "content": "U"}]) == (
        "<|im_start|>system\nbash(command): run a shell command\n"
        'Call as <tool_call>{"name": ..., "arguments": {...}}</tool_call><|im_end|>\n<|im_start|>user\nU<|im_end|>\n'
    )
