"""The main job's loop with vLLM as its engine, by TRL's names, and the server killed in the middle of it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from longrein import AsyncGRPOConfig, AsyncGRPOTrainer, HarnessRolloutWorker
from longrein.store import read_groups
from longrein.train.log_callback import MetricsCallback
from longrein.types import Task
from tests.engines.vllm import rig
from tests.test_loop import Lines, factory, lower_case

pytestmark = pytest.mark.vllm
STEPS = 6
KILLED_AFTER = 3


class KillsTheServer(TrainerCallback):
    """Once, after a step."""

    def __init__(self, url: str) -> None:
        self._url = url

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == KILLED_AFTER:
            os.kill(rig.pid_of(self._url), signal.SIGKILL)


def test_the_loop_trains_on_what_was_sampled_and_survives_kill_9_of_the_server(served: Any, tmp_path: Path) -> None:
    """Somebody else starts it again; here the fixture does. The trainer gives it back the weights that it had."""
    starts = served.process.starts
    check = {"test.sh": b'echo 0.5 > "${SANDBOX_ROOT:-}/logs/verifier/reward.txt"\n'}
    tasks = [Task(task_id=f"t{n}", prompt=f"good {n}", tests=check) for n in range(4)]
    sink = Lines()
    torch.set_num_threads(1)
    worker = HarnessRolloutWorker(
        harness_session_factory=factory,
        model_name=str(served.model),
        dataset=tasks,
        vllm_server_url=served.url,
        output_dir=str(tmp_path),
        rollout_reward_fn=lower_case,
        num_generations=4,
        max_inflight_tasks=4,
        max_staleness=1,
        max_tokens=48,
        context_length=rig.CONTEXT,
    )
    trainer = AsyncGRPOTrainer(
        model=str(served.model),
        args=AsyncGRPOConfig(
            output_dir=str(tmp_path / "checkpoints"),
            per_device_train_batch_size=4,
            num_generations=4,
            max_steps=STEPS,
            max_completion_length=48,
            max_staleness=1,
            learning_rate=1e-3,
            save_strategy="no",
            use_cpu=True,
            vllm_server_base_url=[served.url],
        ),
        train_dataset=tasks,
        rollout_worker=worker,
        callbacks=[MetricsCallback([sink]), KillsTheServer(served.url)],
    )
    trainer.train()

    assert [line["step"] for line in sink.lines] == list(range(1, STEPS + 1))
    assert all(line["staleness_max"] <= 1 for line in sink.lines)
    # At lag 0, and so at the first step, engine and trainer compute the same function (fp32).
    fresh = [line for line in sink.lines if line["staleness_max"] == 0]
    assert fresh
    assert max(line["logprob_gap_max"] for line in fresh) < 1e-4
    assert served.process.starts == starts + 1
    versions = {
        call.completion.max_policy_version
        for group in read_groups(tmp_path)
        for rollout in group.rollouts
        for call in rollout.trace.calls
    }
    # Which of the two a step was made of depends on who was faster. From the kill on, either had to be given back.
    assert all(versions & {step - 2, step - 1} for step in range(1, STEPS + 1))
    assert not (tmp_path / "checkpoints" / "engine-weights").exists()
    assert [thread.name for thread in threading.enumerate() if thread.name == "longrein-vllm-weights"] == []
