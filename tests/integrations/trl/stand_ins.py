"""What TRL 1.16.0's trainer lacks on a CPU, stood in. Nothing else of it is replaced.

* Its attention runs FlashAttention 3 from a hub's kernels, which has no CPU build: here, torch's own attention on each
  segment and the keys that TRL gathered for it.
* Its peak-FLOPs probe asks CUDA for the device's name: here it is unknown, which TRL knows and says in its log.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as ``monkeypatch`` lasts."""
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    monkeypatch.setattr(packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=attend))
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda accelerator, dtype: None)


def attend(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor, *longest: int, **options: Any
) -> Tensor:
    """``[t, heads, width]`` queries in segments, each on its own stretch of the ``[k, kv_heads, width]`` keys."""
    assert options["causal"] and options["window_size"] == (-1, -1)
    shared = query.shape[1] // key.shape[1]
    parts: list[Tensor] = []
    for start, stop, key_start, key_stop in zip(
        query_ends[:-1].tolist(), query_ends[1:].tolist(), key_ends[:-1].tolist(), key_ends[1:].tolist(), strict=True
    ):
        size, seen = stop - start, key_stop - key_start
        asked = query[start:stop].transpose(0, 1)[None]
        keys, values = (
            whole[key_start:key_stop].transpose(0, 1).repeat_interleave(shared, 0)[None] for whole in (key, value)
        )
        # The kernel's causal mask ends with the segment: its last query sees every key.
        mask = torch.ones(size, seen, dtype=torch.bool).tril(seen - size)
        parts.append(scaled_dot_product_attention(asked, keys, values, mask, scale=options["softmax_scale"])[0])
    return torch.cat([part.transpose(0, 1) for part in parts])
