"""Weights that a real server gets by other ways than whole folders: what changed, and adapters alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from longrein.engines.base import AdapterSpec, AdapterTarget
from longrein.errors import EngineError
from longrein.train.adapter_weights import adapter_update, base_weights
from longrein.train.adapters import lora_config, with_adapters
from longrein.train.vllm.choose import SyncSettings, vllm_receiver
from longrein.train.vllm.tied import tied_names
from longrein.train.weights import named_weights
from tests.engines.vllm import rig
from tests.engines.vllm.versions import VERSIONS

pytestmark = pytest.mark.vllm
PROMPT = [10, 20, 30, 40]


@contextmanager
def receiver(served: Any, model: torch.nn.Module, folder: Path, way: Any) -> Iterator[Any]:
    settings = SyncSettings(urls=(served.url,), weight_sync=way, weights_folder=str(folder / "weights"))
    made = vllm_receiver(settings, tied_names(model))
    yield made
    made.close()


async def gap_now(served: Any, model: torch.nn.Module, version: int) -> float:
    """A client of its own, since one asks for the adapter if it was there when it connected."""
    engine = await rig.spec(served.url, model=served.model).connect()
    completion = await engine.generate(rig.request(PROMPT, seed=version, max_tokens=40))
    await engine.close()
    assert (completion.min_policy_version, completion.max_policy_version) == (version, version)
    return rig.gap(model, PROMPT, completion)


async def test_only_what_changed_is_sent(served: Any, tmp_path: Path) -> None:
    model = rig.load(served.model)
    parts = [
        ("", "all of it"),
        ("layers.1.self_attn.k_proj", "one of three that vLLM joins"),
        ("layers.0.mlp.up_proj", "one of two"),
        ("embed_tokens", "tied to the head"),
        ("model.norm", "alone"),
        ("no such part", "nothing"),
    ]
    with receiver(served, model, tmp_path, "delta") as weights:
        for part, why in parts:
            version = next(VERSIONS)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if part in name:
                        parameter.add_(torch.randn_like(parameter) * 0.05)
            weights.update(named_weights(model), version)
            assert await gap_now(served, model, version) < 1e-4, why


async def test_after_an_update_that_failed_the_next_one_sends_everything(served: Any, tmp_path: Path) -> None:
    model = rig.load(served.model)
    with receiver(served, model, tmp_path, "delta") as weights:
        weights.update(named_weights(model), next(VERSIONS))
        rig.shake(model, 1)
        # A folder that the server cannot read: the path becomes a file.
        failed = next(VERSIONS)
        changed = tmp_path / "weights" / f"d{failed}"
        real_publish = weights._updates.publish

        def broken(new: Any, version: int) -> None:
            (changed / "model.safetensors").write_bytes(b"no weights")
            real_publish(new, version)

        weights._updates.publish = broken
        with pytest.raises(EngineError, match="did not take the weights"):
            weights.update(named_weights(model), failed)
        weights._updates.publish = real_publish
        version = next(VERSIONS)
        weights.update(named_weights(model), version)
        assert await gap_now(served, model, version) < 1e-4


async def test_adapters_alone_are_sent_beside_a_base(served: Any, tmp_path: Path) -> None:
    base = rig.load(served.model)
    config = lora_config(rank=4, alpha=6.0, dropout=0.0, target_modules=("q_proj", "down_proj"))
    model = with_adapters(base, config, seed=0).eval()
    with receiver(served, model, tmp_path, "lora") as weights:
        version = next(VERSIONS)
        weights.update(base_weights(model), version)
        assert await gap_now(served, model, version) < 1e-4, "adapters begin as nothing"
        for _ in range(2):
            version = next(VERSIONS)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if ".lora_" in name:
                        parameter.add_(torch.randn_like(parameter) * 0.3)
            update = adapter_update(model)
            weights.update_adapter(update.tensors, update.spec, version)
            assert await gap_now(served, model, version) < 1e-4
            assert sorted(load_file(next((tmp_path / "weights" / f"a{version}").glob("*.safetensors"))))
        # What is in flight goes on with the adapter of the next version, and its file is not gone under it.
        engine = await rig.spec(served.url, model=served.model).connect()
        with rig.slowed(served.url):
            (asked,) = await rig.under_way(served.url, [engine.generate(rig.long_request(PROMPT))])
            before, version = version, next(VERSIONS)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if ".lora_" in name:
                        parameter.add_(torch.randn_like(parameter) * 0.3)
            update = adapter_update(model)
            await asyncio.to_thread(weights.update_adapter, update.tensors, update.spec, version)
        done = await asked
        await engine.close()
        assert (done.min_policy_version, done.max_policy_version) == (before, version)
        assert abs(rig.trainers_logprobs(model, PROMPT, done.token_ids) - done.logprobs)[-20:].max() < 1e-4
        too_large = AdapterSpec(targets={"model.layers.0.mlp.up_proj": AdapterTarget(rank=64, scaling=1.0)})
        with pytest.raises(EngineError, match="--max-lora-rank 64"):
            weights.update_adapter({}, too_large, next(VERSIONS))
        version = next(VERSIONS)
        weights.update(base_weights(model), version)
        with model.disable_adapter():
            assert await gap_now(served, model, version) < 1e-4, "a new base takes the adapter away"


async def test_targets_of_other_ranks_and_scalings_are_written_as_one(served: Any, tmp_path: Path) -> None:
    base = rig.load(served.model)
    spec = AdapterSpec(
        targets={
            "model.layers.0.self_attn.q_proj": AdapterTarget(rank=2, scaling=3.0),
            "model.layers.1.mlp.down_proj": AdapterTarget(rank=5, scaling=0.5),
        }
    )
    tensors: dict[str, torch.Tensor] = {}
    merged = rig.load(served.model)
    for module, target in spec.targets.items():
        weight = merged.get_submodule(module).weight
        a, b = torch.randn(target.rank, weight.shape[1]), torch.randn(weight.shape[0], target.rank)
        tensors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
        with torch.no_grad():
            weight.add_(target.scaling * b @ a)
    with receiver(served, base, tmp_path, "lora") as weights:
        weights.update(named_weights(base), next(VERSIONS))
        version = next(VERSIONS)
        weights.update_adapter(tensors, spec, version)
        assert await gap_now(served, merged, version) < 1e-3
        weights.update(named_weights(base), next(VERSIONS))
