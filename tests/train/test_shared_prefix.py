"""``shared_prefix`` from end to end: the trainer's weights are the same, and it says what it saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from longrein.train.grpo_config import AsyncGRPOConfig
from longrein.train.sft import SftConfig, train_sft
from longrein.train.trainer import AsyncGRPOTrainer
from longrein.types import Call
from tests.traces import call
from tests.train.toy import Recorder, Script, group, row

PROMPT = list(range(5, 25))


def calls(index: int) -> list[Call]:
    """One prompt for all; the first two tokens are the same for each pair of rollouts."""
    ids = [30 + index // 2, 40, 50 + index, 2]
    return [call(0, None, PROMPT, ids, min_policy_version=0, max_policy_version=0)]


def train(folder: Path, out: Path, **changes: Any) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    args = AsyncGRPOConfig(
        output_dir=str(out),
        use_cpu=True,
        save_strategy="no",
        learning_rate=1e-3,
        max_steps=2,
        num_generations=4,
        per_device_train_batch_size=4,
        max_staleness=4,
        **changes,
    )
    receiver = Recorder()
    worker = Script(lambda number: group(f"g{number}", [0.0, 1.0, 0.5, 0.0], calls))
    made = AsyncGRPOTrainer(model=str(folder), args=args, rollout_worker=worker, weight_receiver=receiver)
    made.train()
    return receiver.sent[-1], [line for line in made.state.log_history if "loss" in line]


@pytest.mark.parametrize(
    "changes",
    [{}, {"beta": 0.1}, {"gradient_checkpointing": True}, {"loss": "gspo"}, {"micro_batch_tokens": 1}],
    ids=["grpo", "reference", "checkpointing", "gspo", "cut"],
)
def test_a_run_is_the_same_either_way(folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    tree, tree_lines = train(folder, tmp_path, shared_prefix=True, **changes)
    plain, plain_lines = train(folder, tmp_path, shared_prefix=False, **changes)
    for name, tensor in plain.items():
        torch.testing.assert_close(tree[name], tensor, rtol=0, atol=1e-5, msg=name)
    for one, other in zip(tree_lines, plain_lines, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-5)
        assert one["entropy"] == pytest.approx(other["entropy"])


def test_mixed_precision_takes_trees(folder: Path, tmp_path: Path) -> None:
    """Adam's first steps make much of any rounding, so only what went forward is compared."""
    _, (tree, _again) = train(folder, tmp_path, shared_prefix=True, bf16=True)
    _, (plain, _again) = train(folder, tmp_path, shared_prefix=False, bf16=True)
    assert tree["fed_tokens"] < plain["fed_tokens"]
    assert tree["entropy"] == pytest.approx(plain["entropy"], rel=1e-3)
    assert tree["loss"] == pytest.approx(plain["loss"], abs=1e-2)


def test_what_was_fed_and_saved_is_logged(folder: Path, tmp_path: Path) -> None:
    _, (line, _again) = train(folder, tmp_path, shared_prefix=True)
    # A prompt of 20, two first tokens, two second ones, four third ones; the last token of a row is never fed.
    assert line["fed_tokens"] == 20 + 2 + 2 + 4
    assert line["tree_saving"] == pytest.approx(4 * 23 / 28)
    _, (line, _again) = train(folder, tmp_path, shared_prefix=False)
    assert line["fed_tokens"] == 4 * 23
    assert line["tree_saving"] == 1.0


def test_supervised_training_shares_too_and_saves_an_ordinary_model(folder: Path, tmp_path: Path) -> None:
    rows = [row([*PROMPT, 30, 40 + number, 2], range(20, 23), rollout_id=f"r{number}") for number in range(4)]
    losses = {}
    for shared in (True, False):
        out = tmp_path / str(shared)
        config = SftConfig(
            output_dir=str(out), use_cpu=True, max_steps=3, per_device_train_batch_size=4, shared_prefix=shared
        )
        losses[shared] = train_sft(str(folder), rows, config).losses
        assert AutoModelForCausalLM.from_pretrained(out).config._attn_implementation == "sdpa"
    assert losses[True] == pytest.approx(losses[False], abs=1e-5)
