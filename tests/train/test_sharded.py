"""Sharded tensors are put together one at a time, and kept on one rank alone."""

from __future__ import annotations

import weakref
from collections.abc import Generator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from longrein.train.adapter_weights import adapter_settings
from longrein.train.adapters import with_adapters
from longrein.train.sharded import gathered
from tests import tiny

ROWS, COLUMNS = 64, 48


@pytest.fixture
def mesh() -> Generator[Any, None, None]:
    """Of two ranks, whose other one is silent: what is gathered has the right shape, and no meaning."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


class MostWhole(TorchDispatchMode):
    """How many gathered arrays were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[weakref.ref[Any]] = []
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if "all_gather" in str(func):
            self._seen += [weakref.ref(value.untyped_storage()) for value in tree_leaves(result)]
            self.most = max(self.most, sum(reference() is not None for reference in self._seen))
        return result


def sharded(mesh: Any) -> dict[str, Tensor]:
    return {f"w{number}": distribute_tensor(torch.ones(ROWS, COLUMNS), mesh, [Shard(0)]) for number in range(6)}


def test_a_rank_that_keeps_nothing_has_one_whole_tensor_at_most(mesh: Any) -> None:
    with MostWhole() as whole:
        assert gathered({**sharded(mesh), "plain": torch.ones(2)}, kept=False) == {}
    assert whole.most == 1


def test_the_rank_that_keeps_them_has_all_whole_and_the_unsharded_as_they_are(mesh: Any) -> None:
    plain = torch.ones(2)
    found = gathered({**sharded(mesh), "plain": plain}, kept=True)
    assert found.pop("plain") is plain
    assert {(name, tuple(tensor.shape), type(tensor), tensor.device.type) for name, tensor in found.items()} == {
        (f"w{number}", (ROWS, COLUMNS), Tensor, "cpu") for number in range(6)
    }


def test_a_base_that_was_digested_is_not_gathered_again(mesh: Any) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny.config("llama"))
    adapted: Any = with_adapters(model, LoraConfig(target_modules=["q_proj"]), seed=0)
    before = adapter_settings(adapted)
    for layer in adapted.get_base_model().model.layers:
        layer.mlp.up_proj.weight = torch.nn.Parameter(
            distribute_tensor(layer.mlp.up_proj.weight.detach(), mesh, [Shard(0)]), requires_grad=False
        )
        assert isinstance(layer.mlp.up_proj.weight, DTensor)
    with MostWhole() as whole:
        assert adapter_settings(adapted) == before
    assert whole.most == 0
