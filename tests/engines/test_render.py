"""Messages to ids and back, for any chat template, and the bridge that extends a sampled stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.engines.parsed import ParsedReply
from longrein.engines.render import ChatRenderer
from longrein.engines.tool_parsers import split_hermes
from longrein.errors import RenderError
from longrein.gateway import stitch
from longrein.gateway.reply import as_message
from longrein.types import I32, Message
from tests import tiny

BASH = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'
USER: Message = {"role": "user", "content": "hi"}

HEAD = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
TAIL = "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PLAIN = HEAD + "{{ m.content }}<|im_end|>\n" + TAIL
NO_SEAM = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
NO_SEAM += "{% if add_generation_prompt %}assistant:{% endif %}"
# Phi-3's way: an extra token only where nothing follows.
EXTRA_AT_END = PLAIN + "{% if not add_generation_prompt %}<|endoftext|>{% endif %}"
# Qwen3's way: thoughts vanish from earlier turns once the user speaks again.
FORGETS_THOUGHTS = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    + HEAD
    + "{% if m.reasoning_content and loop.index0 > ns.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    + "{{ m.content }}<|im_end|>\n"
    + TAIL
)
REFUSES_TOOLS = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}{% endfor %}"
    + PLAIN
)


@cache
def chat(template: str = tiny.CHATML) -> ChatRenderer:
    return ChatRenderer.of(tiny.tokenizer(template))


def ids(*parts: I32) -> I32:
    return np.concatenate(parts)


def bridged(r: ChatRenderer, reply: Message, *new: Message, cut: int = 0) -> str | None:
    completion = r.encode_reply(reply)
    completion = completion[: completion.size - cut]
    delta = r.bridge(prompt=r.render((USER,), ()), completion=completion, reply=reply, new=new, tools=())
    return None if delta is None else r.decode(delta)


def assistant(content: str, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def test_reply_is_what_the_template_writes_after_its_generation_prompt() -> None:
    r = chat()
    messages = (USER, assistant("yes"), {"role": "user", "content": "more"})
    said = r.encode_reply(assistant("yes"))
    assert r.decode(said) == "yes<|im_end|>"
    delta = r.bridge(prompt=r.render(messages[:1], ()), completion=said, reply=messages[1], new=messages[2:], tools=())
    assert delta is not None
    np.testing.assert_array_equal(ids(r.render(messages[:1], ()), said, delta), r.render(messages, ()))


def test_reply_is_sampled_apart_from_the_prompt_however_the_text_would_merge() -> None:
    said = chat().encode_reply(assistant("\n\nyes"))
    assert chat().decode(said) == "\n\nyes<|im_end|>"
    np.testing.assert_array_equal(chat(NO_SEAM).encode_reply(assistant("yes")), [*chat().encode(" yes\n"), 2])


texts = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=20)


@settings(max_examples=60, deadline=None)
@given(texts, st.lists(st.tuples(st.sampled_from(["user", "tool"]), texts), min_size=1, max_size=3), st.booleans())
def test_bridge_equals_the_whole_rendering_where_that_is_defined(
    said: str, adds: list[tuple[str, str]], with_tools: bool
) -> None:
    r = chat()
    tools = (BASH,) if with_tools else ()
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": said})}}
    reply = assistant(said, tool_calls=[call])
    new = tuple({"role": role, "content": content, "tool_call_id": "c"} for role, content in adds)
    prompt, completion = r.render((USER,), tools), r.encode_reply(reply)
    delta = r.bridge(prompt=prompt, completion=completion, reply=reply, new=new, tools=tools)
    assert delta is not None and delta.dtype == np.int32
    np.testing.assert_array_equal(ids(prompt, completion, delta), r.render((USER, reply, *new), tools))


def test_cut_completion_gets_the_templates_own_closing() -> None:
    more = {"role": "user", "content": "on"}
    tail = "\n<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n"
    assert bridged(chat(), assistant("yes"), more) == tail
    assert bridged(chat(), assistant("yes"), more, cut=1) == "<|im_end|>" + tail
    assert bridged(chat(), assistant("yes"), more, cut=3) == "<|im_end|>" + tail


def test_token_that_is_only_there_at_the_end_is_left_out() -> None:
    r = chat(EXTRA_AT_END)
    assert r.bridge_problems == {}
    assert bridged(r, assistant("yes"), USER) == "\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_template_without_a_seam_cannot_be_bridged_and_says_why() -> None:
    r = chat(NO_SEAM)
    assert "special token" in r.bridge_problems["user"]
    delta = r.bridge(
        prompt=r.render((USER,), ()), completion=r.encode("yes"), reply=assistant("yes"), new=(USER,), tools=()
    )
    assert delta is None


def test_template_that_rewrites_history_is_bridged_only_where_it_does_not() -> None:
    r = chat(FORGETS_THOUGHTS)
    calls = [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}]
    thought = assistant("yes", reasoning_content="hm", tool_calls=calls)
    assert bridged(r, assistant("yes"), USER) is not None
    assert bridged(r, thought, USER) is None
    assert bridged(r, thought, {"role": "tool", "content": "x", "tool_call_id": "c"}) is not None


def test_template_that_refuses_tools() -> None:
    r = chat(REFUSES_TOOLS)
    assert set(r.bridge_problems) == {"tool"} and "no tools here" in r.bridge_problems["tool"]
    assert bridged(r, assistant("yes"), USER) is not None
    with pytest.raises(RenderError, match="no tools here"):
        r.render((USER, assistant("x"), {"role": "tool", "content": "x", "tool_call_id": "c"}), ())


def test_new_assistant_turns_are_not_bridged() -> None:
    assert bridged(chat(), assistant("yes"), assistant("never sampled"), USER) is None


def test_parse_reads_calls_across_token_boundaries() -> None:
    r = chat()
    for end in ("<|im_end|>", ""):
        reply = r.parse(completion=r.encode(f"first {CALL} {CALL}{end}"), prompt=r.render((USER,), ()), tools=(BASH,))
        assert reply.content == "first  "
        assert [call.name for call in reply.tool_calls] == ["bash", "bash"]
        assert json.loads(reply.tool_calls[0].arguments) == {"command": "ls"}


def test_parse_takes_nothing_for_a_call_where_none_was_offered() -> None:
    r = chat()
    reply = r.parse(completion=r.encode(CALL), prompt=r.render((USER,), ()), tools=())
    assert reply.content == CALL and reply.tool_calls == ()


def test_parse_finds_reasoning() -> None:
    r = chat()
    said = r.encode(f"<think>\nhm\n</think>\n\nyes{CALL}<|im_end|>")
    reply = r.parse(completion=said, prompt=r.render((USER,), ()), tools=(BASH,))
    assert (reply.reasoning_content, reply.content) == ("\nhm\n", "\n\nyes")
    assert len(reply.tool_calls) == 1


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "[]",
        '{"name": "bash"',
        '{"name": 3, "arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": "bash", "arguments": "ls"}',
        '{"arguments": {}}',
        '{"name": "bash", "arguments": {"a": ' + "[" * 5000 + "]" * 5000 + "}}",
    ],
)
def test_malformed_call_stays_visible_beside_a_good_one(body: str) -> None:
    bad = f"<tool_call>{body}</tool_call>"
    split = split_hermes(f"a{bad}{CALL}z")
    assert split.content == f"a{bad}z"
    assert [call.name for call in split.calls] == ["bash"]


def test_unclosed_call_stays_visible() -> None:
    assert split_hermes(f"{CALL}<tool_call>{{").content == "<tool_call>{"


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "{", '"', CALL, "text", "\n"]), max_size=12))
def test_splitting_loses_nothing_but_whitespace(parts: list[str]) -> None:
    split = split_hermes("".join(parts))
    left = "".join([split.content, *(call.raw for call in split.calls)])
    assert sorted("".join(parts).replace("\n", "")) == sorted(left.replace("\n", ""))


@cache
def family(name: str) -> ChatRenderer:
    return ChatRenderer.of(_qwen_tokenizer(), renderer=name)


def _qwen_tokenizer() -> Any:
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"])
    tokenizer.add_tokens(["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"])
    return tokenizer


def read(r: ChatRenderer, completion: I32) -> ParsedReply:
    """Parse, and do with the reply what the gateway does."""
    reply = r.parse(completion=completion, prompt=r.render((USER,), (BASH,)), tools=(BASH,))
    message = as_message(reply, ())
    stitch.meaning(message)
    msgspec.json.encode(message)
    r.render((USER, message, {"role": "tool", "content": "out", "tool_call_id": "c"}), (BASH,))
    return reply


JSON_RENDERERS = [chat, partial(family, "qwen3")]
ARGUMENTS = {
    "half a surrogate pair": '"\\ud83d"',
    "an endless list": "[" * 100_000,
    "a deep list": "[" * 500 + "]" * 500,
    "a long integer": "5" * 5000,
    "no number": "NaN",
    "an infinite number": "1e999",
}


@pytest.mark.parametrize("make", JSON_RENDERERS)
@pytest.mark.parametrize("value", ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_arguments_that_no_agent_could_read_stay_visible(make: Callable[[], ChatRenderer], value: str) -> None:
    r = make()
    reply = read(r, r.encode(f'<tool_call>{{"name": "bash", "arguments": {{"a": {value}}}}}</tool_call><|im_end|>'))
    assert reply.tool_calls == () and value in reply.content


@pytest.mark.parametrize("make", JSON_RENDERERS)
@pytest.mark.parametrize("body", ['{"name": "\\ud83d", "arguments": {}}', '{"name": [1], "arguments": {}}', "[]", "{"])
def test_calls_without_a_name_stay_visible(make: Callable[[], ChatRenderer], body: str) -> None:
    r = make()
    reply = read(r, r.encode(f"<tool_call>{body}</tool_call><|im_end|>"))
    assert reply.tool_calls == () and body in reply.content


SNIPPETS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "bash", "arguments": {"a": ', "}", "["),
        *("<function=bash>", "</function>", "<parameter=a>", "</parameter>"),
        *('"\\ud83d"', "1e999", "5" * 4400, "x", "\n", "\ufffd"),
    ]
)


WHOLE_CALLS = st.builds(
    '<tool_call>{{"name": {}, "arguments": {}}}</tool_call>'.format,
    st.sampled_from(['"bash"', '"\\ud83d"', "3", '""']),
    st.sampled_from(["{}", "[]", *('{"a": ' + value + "}" for value in ARGUMENTS.values() if len(value) < 50_000)]),
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([*JSON_RENDERERS, partial(family, "qwen3.5")]),
    st.lists(st.one_of(WHOLE_CALLS, SNIPPETS, st.lists(st.integers(0, 270), max_size=8)), max_size=12),
)
def test_whatever_is_sampled_is_read(make: Callable[[], ChatRenderer], parts: list[str | list[int]]) -> None:
    r = make()
    sampled = [r.encode(part) if isinstance(part, str) else np.array(part, dtype=np.int32) for part in parts]
    read(r, ids(np.array([], dtype=np.int32), *sampled))


def test_families_of_the_library_bring_their_own_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = _qwen_tokenizer()
    for r in [ChatRenderer.of(tokenizer, renderer="qwen3"), _named("Qwen/Qwen3-0.6B", tokenizer)]:
        prompt, said = r.render((USER,), (BASH,)), r.encode(f"{CALL}<|im_end|>")
        reply = r.parse(completion=said, prompt=prompt, tools=(BASH,))
        assert [call.name for call in reply.tool_calls] == ["bash"]
        tool = {"role": "tool", "content": "out", "tool_call_id": "c"}
        called = assistant(
            "", tool_calls=[{"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}]
        )
        delta = r.bridge(prompt=prompt, completion=said, reply=called, new=(tool,), tools=(BASH,))
        assert delta is not None
        assert r.decode(delta).startswith("\n<|im_start|>user\n<tool_response>\nout")
        cut = r.bridge(prompt=prompt, completion=said[:-1], reply=called, new=(tool,), tools=(BASH,))
        assert cut is not None and r.decode(cut).startswith("<|im_end|>\n")
        assert r.bridge(prompt=prompt, completion=said, reply=assistant(""), new=(USER,), tools=(BASH,)) is None


def _named(name: str, tokenizer: Any) -> ChatRenderer:
    tokenizer.name_or_path = name
    return ChatRenderer.of(tokenizer)


def test_a_template_of_the_users_wins_over_the_family() -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.name_or_path = "Qwen/Qwen3-0.6B"
    r = ChatRenderer.of(tokenizer, chat_template=PLAIN)
    assert r.decode(r.render((USER,), (BASH,))) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_what_cannot_be_loaded_says_what_to_do(tmp_path: Any) -> None:
    with pytest.raises(RenderError, match="no tokenizer can be loaded"):
        ChatRenderer.load(str(tmp_path))
    with pytest.raises(RenderError, match="chat_template = path"):
        ChatRenderer.of(tiny.tokenizer(""))
    with pytest.raises(RenderError, match="hermes_text"):
        ChatRenderer.of(tiny.tokenizer(), tool_parser="nonsense")
    with pytest.raises(RenderError, match="nonsense"):
        ChatRenderer.of(tiny.tokenizer(), renderer="nonsense")
    with pytest.raises(RenderError, match="qwen3"):
        ChatRenderer.of(tiny.tokenizer(), renderer="qwen3")


def test_load_reads_a_folder(tmp_path: Any) -> None:
    tiny.tokenizer().save_pretrained(tmp_path)
    r = ChatRenderer.load(str(tmp_path))
    assert r.stop_token_ids == (2,) and r.vocab_size == 259
    np.testing.assert_array_equal(r.render((USER,), ()), chat().render((USER,), ()))


@pytest.mark.parametrize(
    "fault",
    [
        "range(messages | length * 100000)",
        "1 // (messages | length - 1)",
        "[] | first.x",
        "messages[5].role",
        "'%d' % 'x'",
    ],
)
def test_whatever_a_template_raises_is_a_refusal(fault: str) -> None:
    r = chat(
        PLAIN + "{% if messages[0].content == 'hi' %}{% for i in [" + fault + "] %}{{ i + '' }}{% endfor %}{% endif %}"
    )
    with pytest.raises(RenderError, match="refuses this conversation"):
        r.render((USER,), ())
