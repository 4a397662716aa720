"""The page about OpenEnv and its example, run as they are."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from longrein.engines.scripted import ScriptedEngineSpec
from longrein.store import read_groups
from longrein.types import RolloutGroup
from tests import tiny
from tests.rollout.environments import calls
from tests.test_docs import REPO

pytestmark = pytest.mark.openenv


def test_the_pages_worker_with_openenvs_factory_and_adapter(echo_url: str, page: Any, tmp_path: Path) -> None:
    """Both travel to the spawned process as they are."""
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    model = str(tmp_path / "model")
    turns = (calls(("say", {"message": "four"})), {"role": "assistant", "content": "bye"})
    worker = page.build_worker(echo_url, model, ScriptedEngineSpec(model=model, turns=turns), str(tmp_path / "run"))
    worker.start()
    try:
        groups = groups_of(worker, 2)
    finally:
        worker.stop()
    assert {rollout.score.reward for group in groups for rollout in group.rollouts} == {0.4}


def groups_of(worker: Any, count: int) -> list[RolloutGroup]:
    groups: list[RolloutGroup] = []
    deadline_s = time.monotonic() + 120
    while len(groups) < count and time.monotonic() < deadline_s:
        worker.check_health()
        try:
            groups.append(worker.rollout_buffer.get(timeout=0.5))
        except queue.Empty:
            continue
    assert len(groups) == count
    return groups


def test_example_trains_a_tiny_model_on_the_environment(tmp_path: Path) -> None:
    model = tiny.save_model(tmp_path / "model")
    output = tmp_path / "run"
    command = ["examples/openenv_echo.py", "--model", str(model), "--output", str(output), "--steps", "2"]
    done = subprocess.run(
        [sys.executable, *command], cwd=REPO, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (output / "model" / "model.safetensors").exists()
    groups = list(read_groups(output))
    rewards = [reward for group in groups for reward in group.rewards]
    assert len(groups) >= 2 and None not in rewards and len(set(rewards)) > 1, done.stdout
    call = groups[0].rollouts[0].trace.calls[0]
    assert call.tools[0]["function"]["name"] == "say" and call.completion.token_ids.size <= 8
    state = json.loads((output / "model" / "config.json").read_text())
    assert state["model_type"] == "llama"
