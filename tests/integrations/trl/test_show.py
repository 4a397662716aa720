"""Conversations on the terminal: words of tasks and models are shown, never obeyed."""

from __future__ import annotations

import pytest

from longrein.integrations.trl.samples import SampleRule, group_samples
from longrein.integrations.trl.show import ConversationPrinter
from longrein.rollout.group import RewardSettings, score_group
from longrein.types import Task
from tests.traces import call, rollout


def test_brackets_of_a_task_and_a_reply_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    reply = {"role": "assistant", "content": "see [/b] and list[int]"}
    members = [
        rollout(f"r{n}", [call(0, None, [1], [2], reply=reply)], float(n), group_id="g000001", task_id="a[/b]")
        for n in range(2)
    ]
    group = score_group("g000001", Task(task_id="a[/b]", prompt="p"), members, RewardSettings())
    ConversationPrinter(1)(group, group_samples(group, SampleRule()).samples)
    said = capsys.readouterr().out
    assert "task a[/b]" in said and "see [/b] and list[int]" in said
