"""The whole loop from Python, with TRL's names: real agent processes, a real tiny model, real weights moving."""

from __future__ import annotations

import string
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, TrainerCallback

from longrein import AgentSessionFactory, AsyncGRPOConfig, AsyncGRPOTrainer, Command, HarnessRolloutWorker
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.process import LocalEngineProcess
from longrein.sandboxes.choose import choose_backend
from longrein.store import read_groups
from longrein.train.log_callback import MetricsCallback
from longrein.types import Task
from longrein.views import Outcome
from tests import tiny

STEPS = 6
LOWER = set(string.ascii_lowercase)


class Lines:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self.lines.append({"step": step, **metrics})

    def close(self) -> None:
        pass


class WaitsForTheNextGroup(TrainerCallback):
    """Takes no step before another group than those for it has been made, with the weights from before the step."""

    def __init__(self, folder: Path) -> None:
        self._groups = folder / "rollouts"

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        give_up_s = time.monotonic() + 120
        while len(list(self._groups.glob("*.parquet"))) < min(state.global_step + 2, STEPS):
            assert time.monotonic() < give_up_s, "no rollout was made while a step trained"
            time.sleep(0.01)


def lower_case(outcome: Outcome) -> float:
    """A reward that a random model gets unequally: the share of lower-case letters in what it wrote."""
    text = "".join(str(call.reply.get("content") or "") for call in outcome.trace.calls)
    return sum(letter in LOWER for letter in text) / max(len(text), 1)


def factory() -> AgentSessionFactory:
    script = tiny.DATA / "agents" / "fickle.py"
    return AgentSessionFactory(harness=Command.python_script(str(script)), backend=choose_backend("auto"))


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, float]], Path]:
    folder = tmp_path_factory.mktemp("loop")
    model = tiny.save_model(folder / "start", "llama")
    check = {"test.sh": b'echo 0.5 > "${SANDBOX_ROOT:-}/logs/verifier/reward.txt"\n'}
    tasks = [Task(task_id=f"t{n}", prompt=f"good {n}", tests=check) for n in range(4)]
    sink = Lines()
    torch.set_num_threads(1)
    with LocalEngineProcess(LocalEngineConfig(model=str(model), context_length=512)) as engine:
        worker = HarnessRolloutWorker(
            harness_session_factory=factory,
            model_name=str(model),
            dataset=tasks,
            engine=engine.spec,
            output_dir=str(folder),
            rollout_reward_fn=lower_case,
            num_generations=4,
            max_inflight_tasks=4,
            max_staleness=1,
            max_tokens=48,
            context_length=512,
        )
        trainer = AsyncGRPOTrainer(
            model=str(model),
            args=AsyncGRPOConfig(
                output_dir=str(folder / "checkpoints"),
                per_device_train_batch_size=4,
                num_generations=4,
                max_steps=STEPS,
                max_completion_length=48,
                max_staleness=1,
                learning_rate=1e-3,
                save_strategy="no",
                use_cpu=True,
            ),
            train_dataset=tasks,
            rollout_worker=worker,
            weight_receiver=engine.weights,
            callbacks=[MetricsCallback([sink]), WaitsForTheNextGroup(folder)],
        )
        trainer.train()
    trainer.save_model(str(folder / "model"))
    return sink.lines, folder


def test_every_step_trains_on_what_was_really_sampled(lines: tuple[list[dict[str, float]], Path]) -> None:
    numbers, _folder = lines
    assert [line["step"] for line in numbers] == list(range(1, STEPS + 1))
    first = numbers[0]
    assert first["staleness_max"] == 0
    # Engine and trainer compute the same function: at lag 0 their logprobs agree (fp32).
    assert first["logprob_gap_max"] < 1e-4
    for line in numbers:
        assert line["trained_tokens"] > 0
        assert line["staleness_max"] <= 1
        assert line["grad_norm"] > 0


def test_generation_and_training_overlap(lines: tuple[list[dict[str, float]], Path]) -> None:
    numbers, _folder = lines
    assert max(line["staleness_max"] for line in numbers) == 1, "a step waited for what no later one trained on"


def test_the_trained_model_is_another_one_and_reloads(lines: tuple[list[dict[str, float]], Path]) -> None:
    _numbers, folder = lines
    start = AutoModelForCausalLM.from_pretrained(folder / "start")
    trained = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert any((a != b).any() for a, b in zip(start.parameters(), trained.parameters(), strict=True))


def test_traces_on_disk_have_one_row_a_conversation_and_rising_versions(
    lines: tuple[list[dict[str, float]], Path],
) -> None:
    _numbers, folder = lines
    groups = list(read_groups(folder))
    assert len(groups) >= STEPS
    assert all(len(list(r.trace.paths())) == 1 for g in groups for r in g.rollouts)
    versions = {call.completion.max_policy_version for g in groups for r in g.rollouts for call in r.trace.calls}
    # Which of the two a step was made of depends on who was faster.
    assert all(versions & {step - 2, step - 1} for step in range(1, STEPS + 1))
    assert all(r.metrics["delivered_token_fraction"] == 1.0 for g in groups for r in g.rollouts)
