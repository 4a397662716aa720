"""A rollout as text for a terminal: its calls in order, what each was told and what it said, and how it ended."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import numpy as np
from rich.text import Text

from longrein.types import I32, Call, Message, Rollout

INDENT = "    "
STYLES = {"system": "dim", "user": "cyan", "tool": "magenta", "assistant": "green"}
UNLIKELY = math.log(0.1)
VERY_UNLIKELY = math.log(0.01)


class Sampled(Protocol):
    """How the sampled tokens of a call are shown."""

    def lines(self, call: Call) -> Iterator[Text]:
        """Lines below the reply."""
        ...


class WithoutTokens:
    """Not at all: the reply says it."""

    def lines(self, call: Call) -> Iterator[Text]:
        """None."""
        yield from ()


class WithTokens:
    """Each with its id and its logprob; unlikely ones are coloured.

    Args:
        decode: ids ``[n]`` to text.
    """

    def __init__(self, decode: Callable[[I32], str]) -> None:
        self._decode = decode

    def lines(self, call: Call) -> Iterator[Text]:
        """One line a token."""
        completion = call.completion
        for token, logprob in zip(completion.token_ids.tolist(), completion.logprobs.tolist(), strict=True):
            text = json.dumps(self._decode(np.array([token], dtype=np.int32)), ensure_ascii=False)
            style = "bold red" if logprob < VERY_UNLIKELY else "yellow" if logprob < UNLIKELY else ""
            yield Text(f"{INDENT}{token:>8}  {logprob:8.3f}  {text}", style=style)


class RolloutView:
    """Writes rollouts out.

    Args:
        sampled: how sampled tokens are shown.
    """

    def __init__(self, sampled: Sampled) -> None:
        self._sampled = sampled

    def lines(self, rollout: Rollout) -> Text:
        """The whole trace of a rollout and its end."""
        head = Text(f"── {rollout.rollout_id} · task {rollout.task_id}", style="bold")
        calls = [line for call in rollout.trace.calls for line in self._call(call, rollout)]
        return Text("\n").join([head, *calls, *_end(rollout), Text()])

    def _call(self, call: Call, rollout: Rollout) -> Iterator[Text]:
        yield Text()
        yield Text(_headline(call, int(rollout.trace.prompt_ids(call).size)), style="bold blue")
        if call.tools:
            yield Text(f"{INDENT}tools: {', '.join(_tool_names(call))}", style="dim")
        for message in call.messages:
            yield from _message(message)
        yield from _message(call.reply)
        yield from self._sampled.lines(call)


def one_line(rollout: Rollout) -> Text:
    """How it ended, in one line."""
    seconds = rollout.metrics.get("duration_s", math.nan)
    counts = f"{len(rollout.trace.calls)} calls, {rollout.trace.sampled_tokens} sampled tokens, {seconds:.1f} s"
    return Text.assemble(f"{rollout.rollout_id}  {rollout.task_id}  ", _verdict(rollout), f"  {counts}")


def _verdict(rollout: Rollout) -> Text:
    reward = rollout.score.reward
    told = f"{rollout.status}, reward {'none' if reward is None else f'{reward:g}'}"
    return Text(told, style="bold red" if reward is None else "green" if reward > 0 else "yellow")


def _headline(call: Call, prompt_tokens: int) -> str:
    completion = call.completion
    origin = f"extends call {call.parent_id}" if call.parent_id is not None else f"new branch: {call.branch_reason}"
    size = f"{prompt_tokens} + {completion.token_ids.size} tokens, {completion.prefill_tokens} prefilled"
    versions = {completion.min_policy_version, completion.max_policy_version}
    said = [
        f"call {call.call_id}",
        f"{call.role} ({call.role_evidence})" if call.role_evidence else call.role,
        origin,
        size,
        completion.finish_reason,
        f"{call.timing.generate_s:.2f} s",
        f"version {' to '.join(map(str, sorted(versions)))}",
    ]
    odd = [note for note, holds in (("not delivered", not call.delivered), ("not trained", not call.trains)) if holds]
    return " · ".join([*said, *odd])


def _tool_names(call: Call) -> list[str]:
    return [str(tool.get("function", tool).get("name", "?")) for tool in call.tools]


def _message(message: Message) -> Iterator[Text]:
    role = str(message.get("role", "?"))
    style = STYLES.get(role, "")
    if thought := message.get("reasoning_content"):
        yield _block(f"{role} thinks", str(thought), "dim italic")
    calls: list[dict[str, Any]] = message.get("tool_calls") or []
    content = _content(message.get("content"))
    if content or not calls:
        yield _block(role, content or "(nothing)", style)
    for call in calls:
        function = call.get("function", {})
        yield _block(f"{role} calls", f"{function.get('name')} {_arguments(function.get('arguments'))}", "bold green")


def _content(content: Any) -> str:
    """Text as it is; parts of other kinds as JSON."""
    if isinstance(content, str) or content is None:
        return content or ""
    parts = cast("list[dict[str, Any]]", content) if isinstance(content, list) else [{"content": content}]
    return "\n".join(str(part["text"]) if "text" in part else json.dumps(part, ensure_ascii=False) for part in parts)


def _arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _block(label: str, text: str, style: str) -> Text:
    """A label, and the text below it where it has lines of its own."""
    lines = text.splitlines() or [""]
    if len(lines) == 1:
        return Text(f"{INDENT}{label}: {lines[0]}", style=style)
    return Text("\n".join([f"{INDENT}{label}:", *(f"{INDENT}  | {line}" for line in lines)]), style=style)


def _end(rollout: Rollout) -> Iterator[Text]:
    yield Text()
    yield Text.assemble("end · ", _verdict(rollout))
    if rollout.failure:
        yield Text(f"{INDENT}failure ({rollout.failure.kind}): {rollout.failure.message}", style="red")
    for name, value in rollout.score.metrics.items():
        yield Text(f"{INDENT}{name}: {value:g}")
    for finding in rollout.findings:
        yield Text(f"{INDENT}found ({finding.kind}): {finding.detail}", style="yellow")
    told = ", ".join(f"{name} {value:g}" for name, value in sorted(rollout.metrics.items()))
    yield Text(f"{INDENT}{told}", style="dim")
