"""How fast weights go from the trainer's process to the engine, beside a plain copy."""

from __future__ import annotations

import copy
import math
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM

from engine_bench.contenders import Setup
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.manifest import anonymous_file
from longrein.engines.local.process import LocalEngineProcess
from longrein.engines.local.weights import SharedWeights, make_manifest

_ROUNDS = 5


def publish(setup: Setup) -> dict[str, float]:
    """Gigabytes read and written a second, in turns; the trainer's weights are float32, so bfloat16 reads twice what it
    writes, and a plain copy as much.

    ``memcpy``: one tensor over another. ``arrives``: all weights into the shared block. ``in_use``: the same until the
    engine samples with them, its own copy and the packing for the kernel included.
    """
    torch.set_num_threads(setup.threads)
    model: Any = cast(Any, AutoModelForCausalLM).from_pretrained(setup.model, dtype=torch.float32)
    tensors = model.state_dict()
    manifest = make_manifest(copy.deepcopy(model).to(getattr(torch, setup.dtype)))
    source = torch.ones(manifest.size_bytes // 4)
    target = torch.zeros_like(source)
    file_descriptor = anonymous_file()
    block = SharedWeights(manifest, file_descriptor, lambda _: None)
    config = LocalEngineConfig(
        model=str(setup.model), dtype=cast(Any, setup.dtype), threads=setup.threads, context_length=1024
    )
    try:
        with LocalEngineProcess(config) as process:
            ways: dict[str, Callable[[int], object]] = {
                "memcpy": lambda _: target.copy_(source),
                "arrives": lambda version: block.update(tensors, version),
                "in_use": lambda version: process.weights.update(tensors, version),
            }
            seen = _timed(ways)
    finally:
        os.close(file_descriptor)
    copied = 2 * manifest.size_bytes
    published = manifest.size_bytes + 4 * sum(math.prod(place.shape) for place in manifest.tensors.values())
    moved = {"memcpy": copied, "arrives": published, "in_use": published}
    rates = {f"{name}_gb_s": round(moved[name] / statistics.median(seen[name]) / 1e9, 2) for name in seen}
    paired = [
        published * memcpy / (copied * arrives) for memcpy, arrives in zip(seen["memcpy"], seen["arrives"], strict=True)
    ]
    return {**rates, "arrives_over_memcpy": round(statistics.median(paired), 2)}


def _timed(ways: dict[str, Callable[[int], object]]) -> dict[str, list[float]]:
    """Seconds of each round; the first, which finds its memory for the first time, is left out."""
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(_ROUNDS + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way(number + 1)
            seen[name].append(time.perf_counter() - began)
    return {name: all_[1:] for name, all_ in seen.items()}
