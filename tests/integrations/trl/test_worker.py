"""The worker in TRL's shape: its process, its health, its versions, its checkpoints."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from longrein.engines.scripted import ScriptedEngineSpec
from longrein.errors import CheckpointError, ConfigError, WorkerError
from longrein.integrations.trl import CheckpointRollouts, HarnessRolloutWorker, WeightTransfer, shared_settings
from longrein.types import Task
from tests import tiny
from tests.rollout.by_hand import HandFactory


def worker(folder: Path, **settings: Any) -> HarnessRolloutWorker:
    model = folder / "tokenizer"
    tiny.tokenizer().save_pretrained(model)
    return HarnessRolloutWorker(
        harness_session_factory=HandFactory(),
        model_name=str(model),
        dataset=[Task(task_id="a", prompt="1"), Task(task_id="b", prompt="0")],
        engine=ScriptedEngineSpec(model=str(model), turns=({"role": "assistant", "content": "ok"},)),
        output_dir=str(folder),
        num_generations=2,
        **settings,
    )


@pytest.fixture
def started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[HarnessRolloutWorker]:
    made = worker(tmp_path, log_completions=True, num_completions_to_print=1)
    made.update_model_version(1)
    made.start()
    yield made
    made.stop()


def test_it_delivers_prints_and_stops(
    started: HarnessRolloutWorker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    samples = [started.rollout_buffer.get(timeout=60.0) for _ in range(4)]
    assert {sample.group_id for sample in samples} == {0, 1}
    assert all(sample.completion_mask.any() for sample in samples)
    started.check_health(stale_after_s=300.0)
    said = capsys.readouterr().out
    assert said.count("advantage") == 2 and "assistant: ok" in said
    started.stop()
    with pytest.raises(WorkerError, match="dead"):
        started.check_health(stale_after_s=300.0)


def test_a_process_that_is_stuck_is_reported_and_one_that_is_not_is_well(started: HarnessRolloutWorker) -> None:
    (child,) = [one for one in psutil.Process().children() if "spawn_main" in " ".join(one.cmdline())]
    os.kill(child.pid, signal.SIGSTOP)
    try:
        time.sleep(0.6)
        with pytest.raises(WorkerError, match="stuck"):
            started.check_health(stale_after_s=0.5)
    finally:
        os.kill(child.pid, signal.SIGCONT)
    time.sleep(0.3)
    started.check_health(stale_after_s=30.0)


def test_an_advantage_that_only_our_trainer_finishes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch_normalised"):
        worker(tmp_path, advantage="batch_normalised")


def test_each_sync_is_one_version(tmp_path: Path) -> None:
    """TRL streams, then tells the worker; the engine must have been given the number that the worker is told."""
    published: list[tuple[list[str], int]] = []

    class Receiver:
        def update(self, tensors: Any, policy_version: int) -> None:
            published.append((list(tensors), policy_version))

    made = worker(tmp_path)
    transfer = WeightTransfer(Receiver(), made)
    for version in (1, 2):
        transfer.send_weights(iter([("w", torch.zeros(1))]))
        made.update_model_version(version)
    assert published == [(["w"], 1), (["w"], 2)]


def save(folder: Path, made: HarnessRolloutWorker, step: int) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir()
    state = SimpleNamespace(global_step=step, is_world_process_zero=True)
    CheckpointRollouts(made).on_save(SimpleNamespace(output_dir=str(folder)), state, None)
    return checkpoint


def test_a_checkpoint_says_which_groups_are_used_up(tmp_path: Path) -> None:
    first = worker(tmp_path)
    first.rollout_buffer.taken = ["g000000", "g000002"]
    first.update_model_version(5)
    checkpoint = save(tmp_path, first, step=4)
    second = worker(tmp_path)
    assert CheckpointRollouts(second).restore(checkpoint) == second.model_version == 5
    assert second.rollout_buffer.taken == ["g000000", "g000002"]
    second.start()
    try:
        assert second.rollout_buffer.get(timeout=60.0).group_id in (1, 3)
    finally:
        second.stop()


def test_a_checkpoint_without_its_note_or_with_half_of_it_is_refused(tmp_path: Path) -> None:
    made = worker(tmp_path)
    with pytest.raises(CheckpointError, match="is not there"):
        CheckpointRollouts(made).restore(tmp_path)
    checkpoint = save(tmp_path, made, step=1)
    note = checkpoint / "longrein_rollouts.json"
    note.write_bytes(note.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match="damaged"):
        CheckpointRollouts(made).restore(checkpoint)


@pytest.mark.parametrize(("batch", "generations", "groups"), [(4, 4, 2), (1, 8, 1), (6, 4, 3)])
def test_what_trls_config_says_is_told_once(batch: int, generations: int, groups: int, tmp_path: Path) -> None:
    config = SimpleNamespace(
        num_generations=generations,
        temperature=0.7,
        max_completion_length=33,
        max_staleness=3,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=2,
        world_size=1,
        log_completions=False,
        num_completions_to_print=None,
    )
    assert shared_settings(config) == {
        "num_generations": generations,
        "temperature": 0.7,
        "max_tokens": 33,
        "max_staleness": 3,
        "groups_per_step": groups,
        "log_completions": False,
    }
