"""FSDP2 over processes on CPUs. torch has it over gloo; accelerate asks for it only where devices are accelerators."""

# accelerate is partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType

from longrein.train.step_config import FSDP, launched_with


@contextmanager
def sharding_on_cpu(args: Any) -> Generator[None, None, None]:
    """Let an ``Accelerator`` that is made inside take the branch that it takes for several GPUs.

    Does nothing but for several processes on CPUs that were asked to shard, by ``args.fsdp`` or by the launcher.
    """
    state = cast("dict[str, Any]", PartialState._shared_state)  # pyright: ignore[reportPrivateUsage] (no other way)
    wanted = bool(args.fsdp) or launched_with(FSDP)
    if not wanted or state.get("distributed_type") != DistributedType.MULTI_CPU:
        yield
        return
    state["distributed_type"] = DistributedType.MULTI_GPU
    try:
        yield
    finally:
        state["distributed_type"] = DistributedType.MULTI_CPU


def save_in_shards(fsdp_plugin: Any) -> None:
    """Let checkpoints hold the optimizer's state in shards; whole weights lie beside it.

    Whole states cannot be loaded again over gloo: with torch 2.13 the ranks wait for each other for ever.
    """
    fsdp_plugin.state_dict_config = fsdp_plugin.optim_state_dict_config = None
    fsdp_plugin.set_state_dict_type("SHARDED_STATE_DICT")


def keep_scores_exact(fsdp_plugin: Any) -> None:
    """Let mixed precision be that of the layers alone.

    The outputs here are float32 logprobs, which the library's policy would round to bfloat16, and gradients are summed
    over ranks in float32, as DDP does.
    """
    policy = fsdp_plugin.mixed_precision_policy
    if policy is not None:
        fsdp_plugin.mixed_precision_policy = replace(policy, output_dtype=None, reduce_dtype=torch.float32)
