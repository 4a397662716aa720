"""Supervised training on rows: learns the demonstrations, leaves a model that reloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from longrein.errors import BatchError, CheckpointError
from longrein.train.sft import SftConfig, train_sft
from longrein.types import Row
from tests.train.toy import row


def config(out: Path, **changes: Any) -> SftConfig:
    fields: dict[str, Any] = {
        "output_dir": str(out),
        "use_cpu": True,
        "save_strategy": "no",
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_steps": 12,
        "per_device_train_batch_size": 4,
        **changes,
    }
    return SftConfig(**fields)


def demonstrations() -> list[Row]:
    """After the prompt comes its mirror image; the reward was 0, which must not matter."""
    random = np.random.default_rng(0)
    prompts = [random.integers(10, 250, 4).tolist() for _ in range(4)]
    return [
        row([*prompt, *prompt[::-1], 2], range(4, 9), advantage=0.0, rollout_id=f"d{index}")
        for index, prompt in enumerate(prompts)
    ]


def test_it_learns_what_it_is_shown_and_reloads(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = train_sft(str(folder), demonstrations(), config(tmp_path, max_steps=40))
    assert capfd.readouterr() == ("", "")
    assert result.losses[0] > 5
    assert result.losses[-1] < 1
    assert len(result.losses) == 40
    model = AutoModelForCausalLM.from_pretrained(result.model_folder)
    for item in demonstrations():
        ids = torch.from_numpy(item.token_ids[None].astype(np.int64))
        said = model(input_ids=ids).logits.argmax(-1)[0, 3:8].tolist()
        assert sum(a == b for a, b in zip(said, item.token_ids[4:].tolist(), strict=True)) >= 4
    assert AutoTokenizer.from_pretrained(result.model_folder).chat_template


def test_an_epoch_shows_each_demonstration_once_and_keeps_its_rows_together(folder: Path, tmp_path: Path) -> None:
    rows = [row([3, 4, 5], [part], rollout_id=f"d{index}") for index in range(5) for part in (1, 2)]
    seen: list[list[str]] = []

    class Watch(TrainerCallback):
        def on_log(self, _args: Any, _state: Any, _control: Any, **kwargs: Any) -> None:
            if "rows" in kwargs["logs"]:
                seen.append([kwargs["logs"]["rows"], kwargs["logs"]["trained_tokens"]])

    train_sft(str(folder), rows, config(tmp_path, max_steps=-1, num_train_epochs=2), callbacks=[Watch()])
    assert seen == [[8, 8], [2, 2], [8, 8], [2, 2]]


def test_nothing_to_learn_from_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="no rows"):
        train_sft(str(folder), [], config(tmp_path))


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        train_sft(str(tmp_path / "nowhere"), demonstrations(), config(tmp_path))
