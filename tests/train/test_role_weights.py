"""Roles weigh what the run says: in the config, in a step's rows, and in its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from longrein.errors import ConfigError
from longrein.train.grpo_config import AsyncGRPOConfig
from longrein.train.trainer import AsyncGRPOTrainer
from longrein.types import ROLE_WEIGHTS, Call
from tests.traces import call
from tests.train.toy import Recorder, Script, group


def config(out: Path, **changes: Any) -> AsyncGRPOConfig:
    return AsyncGRPOConfig(output_dir=str(out), use_cpu=True, save_strategy="no", num_generations=2, **changes)


def test_roles_that_are_not_named_keep_their_weight(tmp_path: Path) -> None:
    assert config(tmp_path).role_weights == ROLE_WEIGHTS
    assert config(tmp_path, role_weights={"compaction": 0.5}).role_weights == {**ROLE_WEIGHTS, "compaction": 0.5}


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({"agnet": 1.0}, "choose roles out of agent, subagent"),
        ({"agent": -1.0}, "finite weight of 0 or more"),
        ({"agent": float("nan")}, "finite weight of 0 or more"),
        ({"agent": 0.0, "subagent": 0.0, "retry": 0.0}, "let some role train"),
    ],
)
def test_weights_that_cannot_work_are_one_clear_error(tmp_path: Path, weights: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config(tmp_path, role_weights=weights)


def test_a_step_weighs_roles_and_counts_what_it_leaves_out(folder: Path, tmp_path: Path) -> None:
    def calls(_index: int) -> list[Call]:
        return [
            call(0, None, [1], [2, 3], role="auxiliary"),
            call(1, None, [4], [5], tools=({"type": "function"},)),
            call(2, 1, [6], [7, 8, 9], role="compaction"),
            call(3, 1, [6], [10], trains=False),
        ]

    args = config(tmp_path, per_device_train_batch_size=2, max_steps=1, role_weights={"compaction": 0.25})
    worker = Script([group("g", [0.0, 1.0], calls)])
    made = AsyncGRPOTrainer(model=str(folder), args=args, rollout_worker=worker, weight_receiver=Recorder())
    made.train()
    weighed = [(row.weight, row.token_ids[row.loss_mask].tolist()) for row in made.step_rows]
    assert weighed == 2 * [(1.0, [5]), (0.25, [7, 8, 9])]
    (line,) = [line for line in made.state.log_history if "loss" in line]
    assert line["count/untrained_tokens_auxiliary"] == 4
    assert line["count/untrained_tokens_train_turn_fn"] == 2
