"""``longrein rollout`` as a user runs it, and what it prints of a trace."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.text import Text

from longrein.cli.rollout import COMMAND
from longrein.cli.rollout_json import as_json
from longrein.cli.show_rollout import RolloutView, WithoutTokens, WithTokens, one_line
from longrein.errors import ConfigError
from longrein.store import read_groups
from longrein.types import I32, Failure, Finding, Message, Rollout, Score
from tests import tiny
from tests.cli.test_doctor import write_run
from tests.gateway.rig import BASH, USER, run_bash, say
from tests.traces import call, rollout


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    COMMAND.configure(parser)
    return COMMAND.run(parser.parse_args(arguments))


def test_rollouts_are_made_told_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path, tiny.save_model(tmp_path / "model"))
    capsys.readouterr()
    task = "write_number-test-0-00001"
    code = run(str(path), "-n", "2", "--task", task, "--json", "--tokens", "--output", str(tmp_path / "kept"))
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [(one["task_id"], one["seed"], one["status"]) for one in told] == [
        (task, 0, "completed"),
        (task, 1, "completed"),
    ]
    kept = [group.rollouts[0] for group in read_groups(tmp_path / "kept")]
    assert sorted(one.rollout_id for one in kept) == sorted(one["rollout_id"] for one in told)
    first, again = kept[0], next(one for one in told if one["rollout_id"] == kept[0].rollout_id)
    assert again["calls"][0]["token_ids"] == first.trace.calls[0].completion.token_ids.tolist()
    assert len({tuple(one["calls"][0]["token_ids"]) for one in told}) == 2
    assert not (tmp_path / "out").exists()


def test_a_task_that_is_not_there_is_told_before_anything_starts(tmp_path: Path) -> None:
    path = str(write_run(tmp_path, tiny.save_model(tmp_path / "model")))
    with pytest.raises(ConfigError, match="no task is named 'nonesuch' among the run's 8: write_number-train-0-00000"):
        run(path, "--task", "nonesuch")
    with pytest.raises(ConfigError, match="at least one rollout"):
        run(path, "-n", "0")
    with pytest.raises(ConfigError, match="the test split has no tasks"):
        run(path, "--split", "test", "--set", "tasks.eval_count=0")


RESULT: Message = {"role": "tool", "tool_call_id": "x", "content": "one\ntwo"}


def example() -> Rollout:
    """A turn that calls a tool, its answer, and a sub-agent that was cut off."""
    replace = msgspec.structs.replace
    first = replace(call(0, None, [1, 2], [3, 4]), messages=(USER,), tools=(BASH,), reply=run_bash("ls", "I look."))
    second = replace(call(1, 0, [5], [6]), messages=(RESULT,), reply={**say("Done."), "reasoning_content": "Two."})
    third = replace(
        call(2, None, [7], [8]),
        role="subagent",
        branch_reason="subagent",
        messages=(USER,),
        reply=say(""),
        delivered=False,
    )
    made = rollout("r", [first, second, third])
    return replace(
        made, score=Score(reward=0.5, metrics={"tests": 3.0}), findings=(Finding(kind="pids_limit", detail="64"),)
    )


def text(shown: Text) -> list[str]:
    return [line.rstrip() for line in shown.plain.splitlines()]


def test_a_trace_is_shown_call_by_call() -> None:
    lines = text(RolloutView(WithoutTokens()).lines(example()))
    assert lines[0] == "── r · task t"
    heads = [line for line in lines if line.startswith("call ")]
    assert "new branch" in heads[0]
    assert "2 + 2 tokens" in heads[0]
    assert "extends call 0" in heads[1]
    assert "5 + 1 tokens" in heads[1]
    assert "subagent" in heads[2]
    assert heads[2].endswith("not delivered")
    for line in (
        "    tools: bash",
        "    user: go",
        "    assistant: I look.",
        '    assistant calls: bash {"command": "ls"}',
        "    tool:",
        "      | one",
        "      | two",
        "    assistant thinks: Two.",
        "    assistant: Done.",
        "    assistant: (nothing)",
        "    tests: 3",
        "    found (pids_limit): 64",
    ):
        assert line in lines, (line, lines)
    assert any(line.startswith("end · completed, reward 0.5") for line in lines)


def test_tokens_are_shown_with_their_logprobs() -> None:
    def decode(ids: I32) -> str:
        return f"<{int(ids[0])}>\n"

    made = example()
    lines = text(RolloutView(WithTokens(decode)).lines(made))
    logprob = float(made.trace.calls[0].completion.logprobs[1])
    assert f'           4  {logprob:8.3f}  "<4>\\n"' in lines


def test_a_failure_is_shown_with_its_reason() -> None:
    failure = Failure(kind="sandbox", message="no place on the disk")
    made = msgspec.structs.replace(example(), status="failed", failure=failure, score=Score(reward=None, reason="x"))
    assert "    failure (sandbox): no place on the disk" in text(RolloutView(WithoutTokens()).lines(made))
    assert "failed, reward none" in one_line(made).plain


def test_json_holds_tokens_only_where_asked() -> None:
    plain, whole = (json.loads(as_json([example()], with_tokens=tokens))[0] for tokens in (False, True))
    assert "token_ids" not in plain["calls"][0]
    assert whole["calls"][0]["token_ids"] == [3, 4]
    assert whole["calls"][1]["prompt_delta"] == [5]
    assert np.allclose(whole["calls"][0]["logprobs"], example().trace.calls[0].completion.logprobs)
    assert plain["score"]["metrics"] == {"tests": 3.0}
    assert plain["calls"][0]["reply"]["tool_calls"][0]["function"]["name"] == "bash"
