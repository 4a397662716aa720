"""Rows longer than the token budget: alone, with activation checkpointing, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from longrein.errors import BatchError
from longrein.train.batch import share_step
from longrein.train.oversized import OversizedRows
from longrein.train.packing import PlainPacking
from longrein.train.sft import SftConfig, train_sft
from longrein.types import Row
from tests.train.toy import row

ROWS: list[Row] = [row([5, *range(20, 20 + size), 2], [size, size + 1], rollout_id=f"r{size}") for size in (4, 6, 30)]


def config(out: Path, **changes: Any) -> SftConfig:
    return SftConfig(
        output_dir=str(out), use_cpu=True, max_steps=2, per_device_train_batch_size=3, save_strategy="no", **changes
    )


@pytest.mark.parametrize("shared_prefix", [True, False])
def test_only_their_passes_compute_activations_again(
    folder: Path, tmp_path: Path, shared_prefix: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    forward, seen = type(model).forward, []

    def watch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and self.training:
            seen.append((kwargs["input_ids"].numel(), self.is_activation_checkpointing))
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", watch)
    train_sft(model, ROWS, config(tmp_path / "one", micro_batch_tokens=20, shared_prefix=shared_prefix))
    assert {checkpointed for tokens, checkpointed in seen if tokens > 20} == {True}
    assert {checkpointed for tokens, checkpointed in seen if tokens <= 20} == {False}
    assert not model.is_activation_checkpointing


def test_they_train_as_with_room(folder: Path, tmp_path: Path) -> None:
    losses = [
        train_sft(str(folder), ROWS, config(tmp_path / str(tokens), micro_batch_tokens=tokens)).losses
        for tokens in (20, 4096)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_model_that_cannot_is_refused_them(folder: Path) -> None:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder)
    model.supports_gradient_checkpointing = False
    limits = OversizedRows(model, 20)
    limits.check(ROWS[:2])
    with pytest.raises(BatchError, match=r"rollout r30 .* 31 tokens .* micro_batch_tokens=20, and LlamaForCausalLM"):
        limits.check(ROWS)
    (batch,) = PlainPacking(20).pack(share_step(ROWS[:1], "token"))
    with limits.around(batch):
        assert not model.is_activation_checkpointing
