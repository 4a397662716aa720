"""TRL 1.16.0's packed step (its trie, loss and fused head) on our rows, with SDPA in place of FlashAttention 3.

TRL shares prefixes only through that kernel, which has no CPU build; the stand-in runs each segment against the
gathered keys of its path, as the kernel does.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from longrein.train.batch import SharedRow, input_count

VERSION = "1.16.0"


class TrlStep:
    """Args:
    site_packages: where TRL is installed (``--no-deps`` is enough; torch and transformers are ours).
    model: copied.
    budget: unique tokens of a micro-batch.
    shared: whether rows share prefixes; if not, each row is a micro-batch of its own.
    """

    def __init__(self, site_packages: Path, model: Any, budget: int, *, shared: bool) -> None:
        self._packing = _import(site_packages)
        from trl.trainer.utils import add_fused_lm_head

        self._model = copy.deepcopy(model).train()
        self._model.set_attn_implementation(self._packing.TREE_ATTENTION)
        add_fused_lm_head(self._model, outputs=("log_probs", "entropy"))
        self._budget = budget
        self._shared = shared

    def step(self, rows: Sequence[SharedRow]) -> dict[str, float]:
        """One forward and backward over ``rows``, from rows to gradient."""
        self._model.zero_grad()
        wall, cpu = time.perf_counter(), time.process_time()
        samples = [_sample(item) for item in rows]
        total = sum(int(sample["completion_mask"].sum()) for sample in samples)
        fed = 0
        for trie in self._tries(samples):
            packed = trie.pack()
            fed += packed["input_ids"].numel()
            self._loss(packed, total).backward()
        return {
            "wall_s": time.perf_counter() - wall,
            "cpu_s": time.process_time() - cpu,
            "fed_tokens": fed,
        }

    def gradient(self) -> Tensor:
        return torch.cat([parameter.grad.flatten() for parameter in self._model.parameters()])

    def _tries(self, samples: Sequence[dict[str, Any]]) -> Iterator[Any]:
        trie = self._packing.TreeRow()
        for sample in samples:
            if trie.samples and not (self._shared and trie.fits(sample, self._budget)):
                yield trie
                trie = self._packing.TreeRow()
            trie.add(sample)
        yield trie

    def _loss(self, packed: dict[str, Tensor], total: int) -> Tensor:
        """As its ``compute_loss``."""
        longest_segment, longest_path = packed["tree_max_seqlens"].tolist()
        outputs = self._model(
            input_ids=packed["input_ids"][None],
            position_ids=packed["position_ids"][None],
            shift_labels=packed["shift_labels"][None],
            fused_lm_head=True,
            tree_kv_index=packed["tree_kv_index"],
            tree_cu_seqlens_q=packed["tree_cu_seqlens_q"],
            tree_cu_seqlens_k=packed["tree_cu_seqlens_k"],
            tree_max_seqlen_q=longest_segment,
            tree_max_seqlen_k=longest_path,
        )
        log_ratio = outputs.log_probs.flatten()[packed["token_index"]] - packed["old_log_probs"]
        ratio = log_ratio.exp()
        clipped = ratio.clamp(0.8, 1.2)
        return -torch.min(ratio * packed["advantages"], clipped * packed["advantages"]).sum() / total


def _import(site_packages: Path) -> Any:
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    sys.path.append(str(site_packages))
    import trl
    from trl.experimental.async_grpo import packing

    if trl.__version__ != VERSION:
        raise SystemExit(f"TRL {trl.__version__} is not the peer; install trl=={VERSION} in {site_packages}")
    packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=_varlen)
    packing.register_tree_attention()
    return packing


def _sample(item: SharedRow) -> dict[str, Any]:
    row = item.row
    size = input_count(row) + 1
    return {
        "input_ids": torch.from_numpy(row.token_ids[:size]).long(),
        "completion_mask": torch.from_numpy(row.loss_mask[:size]).long(),
        "old_log_probs": torch.from_numpy(row.logprobs[:size]),
        "advantage": row.advantage,
        "group_id": row.group_id,
    }


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, query_bounds: Tensor, key_bounds: Tensor, *_longest: int, **options: Any
) -> Tensor:
    """``[t, heads, width]`` queries against the gathered ``[k, kv_heads, width]`` keys, segment by segment."""
    repeats = query.shape[1] // key.shape[1]
    query_ends, key_ends = query_bounds.tolist(), key_bounds.tolist()
    parts = []
    for number in range(len(query_ends) - 1):
        part = query[query_ends[number] : query_ends[number + 1]].transpose(0, 1)
        keys, values = (
            whole[key_ends[number] : key_ends[number + 1]].transpose(0, 1).repeat_interleave(repeats, 0)
            for whole in (key, value)
        )
        size, path = part.shape[1], keys.shape[1]
        mask = None if size == path else torch.ones(size, path, dtype=torch.bool).tril(path - size)
        found = scaled_dot_product_attention(
            part[None], keys[None], values[None], mask, is_causal=mask is None, scale=options["softmax_scale"]
        )
        parts.append(found[0].transpose(0, 1))
    return torch.cat(parts)
