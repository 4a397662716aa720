"""Adapters at the engine: base + scaling * B @ A, whatever was there before, or one clear refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from longrein.engines.base import AdapterReceiver, AdapterSpec, AdapterTarget
from longrein.engines.local.adapted import AdaptedModule
from longrein.engines.local.adapters import AdaptableWeights
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.manifest import anonymous_file
from longrein.engines.local.process import LocalEngineProcess
from longrein.engines.local.weights import make_manifest
from longrein.errors import EngineError
from tests import tiny
from tests.engines.local.reference import forward_logprobs, random_ids, request
from tests.engines.local.stepped import stepped

MODULES = [
    "model.layers.0.self_attn.q_proj",
    "model.layers.0.self_attn.k_proj",
    "model.layers.1.mlp.down_proj",
    "model.layers.1.mlp.up_proj",
]


def served(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(tiny.config("llama", **changes)).to(dtype)


def engine_of(model: Any) -> AdaptableWeights:
    """Publishing is taken by ``model``, as in the engine's process."""
    manifest, file_descriptor = make_manifest(model), anonymous_file()
    engine = AdaptedModule(model, manifest, file_descriptor)
    return AdaptableWeights(manifest, file_descriptor, engine.take)


class Adapter:
    def __init__(self, weights: Mapping[str, torch.Tensor], modules: list[str], seed: int, rank: int = 3) -> None:
        random = torch.Generator().manual_seed(seed)
        self.tensors: dict[str, torch.Tensor] = {}
        targets: dict[str, AdapterTarget] = {}
        for number, module in enumerate(modules):
            out, into = weights[f"{module}.weight"].shape
            self.tensors[f"{module}.lora_A.weight"] = torch.randn((rank, into), generator=random)
            self.tensors[f"{module}.lora_B.weight"] = torch.randn((out, rank), generator=random) * 0.1
            targets[module] = AdapterTarget(rank=rank, scaling=0.5 + number)
        self.spec = AdapterSpec(targets=targets)

    def on(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What the weights become."""
        found = {name: tensor.clone() for name, tensor in weights.items()}
        for module, target in self.spec.targets.items():
            a, b = self.tensors[f"{module}.lora_A.weight"], self.tensors[f"{module}.lora_B.weight"]
            base = weights[f"{module}.weight"]
            found[f"{module}.weight"] = (base.float() + target.scaling * (b @ a)).to(base.dtype)
        return found


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def assert_equal(model: Any, expected: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in model.named_parameters():
        assert torch.equal(tensor, expected[name]), name


@settings(deadline=None, max_examples=25)
@given(
    events=st.lists(st.lists(st.sampled_from(MODULES), unique=True, max_size=4), min_size=1, max_size=6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_the_base_never_drifts(events: list[list[str]], dtype: torch.dtype) -> None:
    """Bit by bit, after adapters of changing targets and full updates (an event without modules) in any order."""
    model = served(dtype=dtype)
    weights = engine_of(model)
    base = weights_of(model)
    for version, modules in enumerate(events, start=1):
        if modules:
            adapter = Adapter(base, modules, seed=version, rank=1 + version % 3)
            weights.update_adapter(adapter.tensors, adapter.spec, version)
            assert_equal(model, adapter.on(base))
        else:
            base = weights_of(served(seed=version, dtype=dtype))
            weights.update(base, version)
            assert_equal(model, base)


def test_it_takes_adapters_by_protocol() -> None:
    assert isinstance(engine_of(served()), AdapterReceiver)


def _other_module(adapter: Adapter) -> None:
    adapter.spec.targets["model.layers.9.mlp.up_proj"] = AdapterTarget(rank=3, scaling=1.0)
    adapter.tensors["model.layers.9.mlp.up_proj.lora_A.weight"] = torch.zeros(3, 64)
    adapter.tensors["model.layers.9.mlp.up_proj.lora_B.weight"] = torch.zeros(128, 3)


def _tied(adapter: Adapter) -> None:
    adapter.spec.targets["lm_head"] = AdapterTarget(rank=3, scaling=1.0)
    adapter.tensors["lm_head.lora_A.weight"] = torch.zeros(3, 64)
    adapter.tensors["lm_head.lora_B.weight"] = torch.zeros(264, 3)


def _no_matrix(adapter: Adapter) -> None:
    adapter.spec.targets["model.norm"] = AdapterTarget(rank=3, scaling=1.0)
    adapter.tensors["model.norm.lora_A.weight"] = torch.zeros(3, 64)
    adapter.tensors["model.norm.lora_B.weight"] = torch.zeros(64, 3)


def _other_shape(adapter: Adapter) -> None:
    adapter.tensors[f"{MODULES[0]}.lora_A.weight"] = torch.zeros(3, 65)


def _other_rank(adapter: Adapter) -> None:
    adapter.spec.targets[MODULES[0]] = AdapterTarget(rank=4, scaling=1.0)


def _missing(adapter: Adapter) -> None:
    del adapter.tensors[f"{MODULES[0]}.lora_B.weight"]


def _unknown(adapter: Adapter) -> None:
    adapter.tensors["bias"] = torch.zeros(3)


def _nothing(adapter: Adapter) -> None:
    adapter.tensors.clear()
    adapter.spec.targets.clear()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_other_module, r"has no model\.layers\.9\.mlp\.up_proj\.weight; train adapters of the same model"),
        (_tied, r"lm_head\.weight is tied to another weight.*leave lm_head out"),
        (_no_matrix, r"the adapter of model\.norm has shapes.*the engine's weight there is \(64,\)"),
        (_other_shape, r"A \(3, 65\) and B \(64, 3\) and rank 3, the engine's weight there is \(64, 64\)"),
        (_other_rank, "and rank 4, the engine's"),
        (_missing, r"missing model\.layers\.0\.self_attn\.q_proj\.lora_B\.weight"),
        (_unknown, "unknown bias; pass <module>"),
        (_nothing, "0 targets"),
    ],
)
def test_adapters_of_another_model_are_refused_and_nothing_changes(spoil: Callable[[Adapter], None], says: str) -> None:
    model = served()
    weights, base = engine_of(model), weights_of(model)
    good = Adapter(base, MODULES, seed=0)
    weights.update_adapter(good.tensors, good.spec, 5)
    bad = Adapter(base, MODULES, seed=1)
    spoil(bad)
    with pytest.raises(EngineError, match=says):
        weights.update_adapter(bad.tensors, bad.spec, 6)
    assert_equal(model, good.on(base))
    with pytest.raises(EngineError, match="version 4 is older than the engine's 5"):
        weights.update_adapter(good.tensors, good.spec, 4)


def test_an_adapter_needs_a_base_that_came_whole() -> None:
    """Half of the block holds another base; the engine still samples with the old one."""
    model = served()
    weights, base = engine_of(model), weights_of(model)

    class Broken(torch.Tensor):
        pass

    halfway = {**base, "model.norm.weight": torch.full((64,), 2.0).as_subclass(Broken)}
    Broken.__torch_function__ = classmethod(_interrupted)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        weights.update(halfway, 1)
    adapter = Adapter(base, MODULES, seed=0)
    with pytest.raises(EngineError, match="broken off; send them again"):
        weights.update_adapter(adapter.tensors, adapter.spec, 2)
    assert_equal(model, base)
    weights.update(base, 2)
    weights.update_adapter(adapter.tensors, adapter.spec, 2)
    assert_equal(model, adapter.on(base))


def _interrupted(cls: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    if function is torch.Tensor.copy_:
        raise KeyboardInterrupt
    with torch._C.DisableTorchFunctionSubclass():
        return function(*args, **(kwargs or {}))


async def test_a_running_engine_takes_adapters_between_two_steps(folder_of: Callable[[str], Path]) -> None:
    """No full update before: the base is what the engine was started with."""
    folder = folder_of("llama")
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    base = weights_of(model)
    prompt = random_ids(1, 5)
    with LocalEngineProcess(LocalEngineConfig(model=str(folder), threads=1)) as process:
        engine = await process.spec.connect()
        async with stepped(process, engine) as steps:
            running = asyncio.create_task(engine.generate(request("running", random_ids(0, 5), max_tokens=1000)))
            first = asyncio.create_task(engine.generate(request("first", prompt, max_tokens=2)))
            await steps.until(first.done)
            for version in (3, 4):
                adapter = Adapter(base, MODULES, seed=version)
                await asyncio.to_thread(process.weights.update_adapter, adapter.tensors, adapter.spec, version)
                asked = asyncio.create_task(engine.generate(request("fresh", prompt, max_tokens=6)))
                await steps.until(asked.done)
                fresh = await asked
                assert (fresh.min_policy_version, fresh.max_policy_version) == (version, version)
                model.load_state_dict(adapter.on(base), strict=False)
                expected = forward_logprobs(model, prompt, fresh.token_ids)
                np.testing.assert_allclose(fresh.logprobs, expected, atol=1e-4)
        crossing = await running
        assert (crossing.min_policy_version, crossing.max_policy_version) == (0, 4)
        await engine.close()
        weights = process.weights
    adapter = Adapter(base, MODULES[:1], seed=0)
    with pytest.raises(EngineError, match="was stopped"):
        weights.update_adapter(adapter.tensors, adapter.spec, 9)
