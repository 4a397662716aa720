"""The block mask of a prefix tree for flex attention, from subtree ends alone.

The library's ``create_block_mask`` evaluates the mask for every pair of tokens: about ten bytes a pair where it is not
compiled, 43 GB for 64k tokens. A block of keys and one of queries can be judged by their ends.
"""

# torch is partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import Tensor

BLOCK_TOKENS = 128
"""Of queries and of keys; the kernel's own default."""


def tree_block_mask(subtree_ends: Tensor) -> Any:
    """A ``BlockMask`` in which a token sees its ancestors and itself; nothing waits for a GPU.

    Args:
        subtree_ends: ``[t]`` int64. Memory is that of a few numbers for each pair of *blocks*.
    """
    from torch.nn.attention.flex_attention import BlockMask

    size = subtree_ends.numel()
    kinds = _judge(subtree_ends)
    return BlockMask.from_kv_blocks(
        *_listed(kinds.partial),
        *_listed(kinds.full),
        BLOCK_SIZE=BLOCK_TOKENS,
        mask_mod=sees(subtree_ends),
        seq_lengths=(size, size),
    )


def sees(subtree_ends: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Whether a query sees a key: the key stands before it, and it is in the key's subtree."""

    def mask(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < subtree_ends[key])

    return mask


class _Kinds(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of queries by blocks of keys, bool."""

    full: Tensor
    """Every query sees every key."""
    partial: Tensor
    """Some query sees some key, and not all all."""


def _judge(subtree_ends: Tensor) -> _Kinds:
    size = subtree_ends.numel()
    blocks = torch.arange(-(-size // BLOCK_TOKENS), device=subtree_ends.device)
    missing = blocks.numel() * BLOCK_TOKENS - size
    ends = torch.nn.functional.pad(subtree_ends, (0, missing)).view(-1, BLOCK_TOKENS)
    first, after = blocks * BLOCK_TOKENS, (blocks + 1) * BLOCK_TOKENS
    before = blocks.unsqueeze(0) < blocks.unsqueeze(1)
    own = blocks.unsqueeze(0) == blocks.unsqueeze(1)
    seen = own | (before & (ends.amax(1).unsqueeze(0) > first.unsqueeze(1)))
    # A subtree that ends with a block's last query has its end after it; a block that is cut off is never full.
    full = before & (ends.amin(1).unsqueeze(0) >= after.unsqueeze(1)) & (after <= size).unsqueeze(1)
    return _Kinds(full=full, partial=seen & ~full)


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many key blocks each query block has, and which come first: ``[1, 1, q]`` and ``[1, 1, q, k]`` int32."""
    order = torch.argsort(chosen.to(torch.int8), dim=-1, descending=True, stable=True)
    counts = chosen.sum(-1)
    return counts.to(torch.int32)[None, None], order.to(torch.int32)[None, None]
