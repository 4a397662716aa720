"""Weights leave under the names that a fresh copy of the model has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from longrein.errors import ConfigError
from longrein.train.weights import named_weights


def test_names_are_those_of_a_fresh_model_and_tied_tensors_come_once(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    weights = named_weights(model)
    assert weights.keys() == dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters()).keys()
    assert "lm_head.weight" not in weights
    assert not any(tensor.requires_grad for tensor in weights.values())


def test_compiled_wrappers_are_taken_off(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert named_weights(torch.compile(model, backend="eager")).keys() == named_weights(model).keys()


def test_saved_buffers_travel_and_scratch_buffers_do_not() -> None:
    model = nn.BatchNorm1d(2)
    model.register_buffer("scratch", torch.zeros(1), persistent=False)
    assert set(named_weights(model)) == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}


def test_adapters_are_refused() -> None:
    class Adapted(nn.Linear):
        def merge_adapter(self) -> None: ...

    with pytest.raises(ConfigError, match="merge_and_unload"):
        named_weights(Adapted(1, 1))
