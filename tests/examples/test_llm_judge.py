"""The judge asks its own endpoint, a gateway with a scripted model here, and nothing of it is in the agent's trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from longrein.sandboxes.base import WorkFile, WorkTree
from longrein.sandboxes.local import SubprocessBackend
from longrein.tasks.python_verifier import PythonVerifier
from longrein.types import Score, Task
from tests.gateway.rig import rig, say

pytestmark = pytest.mark.filterwarnings("ignore:sandboxes are plain subprocesses:RuntimeWarning")
JUDGE = str(Path(__file__).parents[2] / "examples/llm_judge/judge.py")
TASK = Task(task_id="t", prompt="Write a haiku to poem.txt.", metadata={"rubric": "Three lines."})
WORK = WorkTree(files={"poem.txt": WorkFile(data=b"one\ntwo\nthree\n")})


async def graded(said: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Score, int, int]:
    """The verdict, and the calls in the judge's and in the agent's trace."""
    async with rig([say(said)], max_tokens=512) as r:
        judge = r.gateway.open_session("judge")
        monkeypatch.setenv("JUDGE_BASE_URL", f"{judge.base_url}/v1")
        monkeypatch.setenv("JUDGE_API_KEY", judge.api_key)
        monkeypatch.setenv("JUDGE_MODEL", judge.model)
        verdict = await PythonVerifier(function=f"{JUDGE}:judge").verify(TASK, WORK, SubprocessBackend())
        return verdict, len(r.gateway.trace("judge").calls), len(r.trace().calls)


async def test_a_grade_becomes_the_reward_and_no_call_is_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict, judges, agents = await graded("Three lines, good.\nGRADE: 7/10", monkeypatch)
    assert (verdict.reward, judges, agents) == (0.7, 1, 0)
    verdict, _, _ = await graded("I like it.", monkeypatch)
    assert verdict.reward is None and "no grade: I like it." in verdict.reason


async def test_an_endpoint_that_is_not_there_is_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("JUDGE_MODEL", "m")
    verdict = await PythonVerifier(function=f"{JUDGE}:judge").verify(TASK, WORK, SubprocessBackend())
    assert verdict.reward is None and "URLError" in verdict.reason
