"""What travels from the trainer to the engine: every tensor of a checkpoint, saved buffers included."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from longrein.engines.local.manifest import anonymous_file
from longrein.engines.local.weights import SharedWeights, load_block, make_manifest, map_block
from longrein.errors import EngineError
from longrein.train.folder_weights import folder_weights
from longrein.train.weights import named_weights
from tests import tiny


def with_buffers(value: float) -> Any:
    """A llama that keeps a statistic of its own, as models with running norms or learned scales do."""
    torch.manual_seed(int(value))
    model: Any = AutoModelForCausalLM.from_config(tiny.config("llama"))
    model.model.register_buffer("scale", torch.full((3,), value))
    model.model.register_buffer("seen", torch.tensor(int(value)))
    model.model.register_buffer("none", torch.zeros(0))
    model.model.register_buffer("scratch", torch.full((2,), value), persistent=False)
    return model


def engine_of(model: Any) -> SharedWeights:
    """Publishing loads the block into ``model``, as the engine's process does."""
    manifest = make_manifest(model)
    fd = anonymous_file()
    block = map_block(manifest, fd)
    return SharedWeights(manifest, fd, lambda policy_version: load_block(model, block))


def assert_same(model: Any, expected: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in named_weights(model).items():
        torch.testing.assert_close(tensor, expected[name], msg=name)


def test_saved_buffers_travel_and_scratch_buffers_do_not() -> None:
    trained, served = with_buffers(2.0), with_buffers(1.0)
    engine_of(served).update(named_weights(trained), 1)
    assert_same(served, named_weights(trained))
    assert served.model.scale.tolist() == [2.0, 2.0, 2.0] and int(served.model.seen) == 2
    assert served.model.scratch.tolist() == [1.0, 1.0]


def test_so_do_those_of_a_saved_folder_and_of_a_state_dict(tmp_path: Path) -> None:
    trained, served = with_buffers(3.0), with_buffers(1.0)
    trained.save_pretrained(tmp_path)
    engine_of(served).update(folder_weights(tmp_path), 1)
    assert_same(served, named_weights(trained))
    other = with_buffers(1.0)
    engine_of(other).update(trained.state_dict(), 1)
    assert_same(other, named_weights(trained))


def test_a_buffer_that_is_missing_is_named() -> None:
    with pytest.raises(EngineError, match=r"missing model\.none, model\.scale, model\.seen"):
        engine_of(with_buffers(1.0)).update(dict(with_buffers(2.0).named_parameters()), 1)
