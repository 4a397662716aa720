"""Attention over a prefix tree, for any model that takes its attention from the library's interface.

A token sees its ancestors and itself. In depth-first order the tokens that see a segment's keys are one range: the
segment itself, causally, and all its descendants. So each segment's keys meet their queries in one causal call on
views of the arrays, nothing is copied or masked, and the parts are joined by their log-sum-exp as in FlashAttention
(arXiv 2205.14135, section 3.1). The backward pass needs only the joined output and log-sum-exp.

The table of the tree travels as ``attention_mask``, an argument of every layer, so that gradient checkpointing hands
the same table to the recomputation.
"""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any, cast

import msgspec
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from longrein.errors import ConfigError
from longrein.train.tree_blocks import tree_block_mask

CPU_ATTENTION = "longrein_tree"
"""Name in the library's interface. With an ordinary mask, or none, it is the library's ``sdpa``."""
GPU_ATTENTION = "flex_attention"
"""The library's own: one block mask says what :data:`CPU_ATTENTION` does segment by segment."""

REFUSED = ("softcap", "s_aux", "sinks", "position_bias", "dropout", "values of another width")
"""What a layer may ask of attention that a tree cannot have."""

_FLASH = cast(Any, torch.ops.aten)._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = cast(Any, torch.ops.aten)._scaled_dot_product_flash_attention_for_cpu_backward


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a tree without a fork."""

    start: int
    stop: int
    """The first token after it."""
    subtree_end: int
    """The first token after all its descendants."""
    is_root: bool


def segments(subtree_ends: Tensor) -> tuple[Segment, ...]:
    """``[t]`` subtree ends -> segments in depth-first order. Equal neighbours belong to one segment."""
    ends, sizes = torch.unique_consecutive(subtree_ends, return_counts=True)
    found: list[Segment] = []
    start = tree_end = 0
    for end, size in zip(ends.tolist(), sizes.tolist(), strict=True):
        found.append(Segment(start=start, stop=start + size, subtree_end=end, is_root=start >= tree_end))
        tree_end = max(tree_end, end)
        start += size
    return tuple(found)


def use_tree_attention(model: nn.Module) -> None:
    """Let a model, which may be wrapped, take tree masks from now on; all it could take before it still takes.

    Raises:
        ConfigError: no part of it is a model of the library.
    """
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            wanted = CPU_ATTENTION if module.device.type == "cpu" else GPU_ATTENTION
            if attention_of(module) != wanted:
                module.set_attn_implementation(wanted)
            return
    raise ConfigError("shared_prefix needs a model of the transformers library; set shared_prefix = false")


def attention_of(model: PreTrainedModel) -> str:
    """The name of its attention in the library's interface."""
    return str(cast(Any, model.config)._attn_implementation)


def tree_mask(subtree_ends: Tensor) -> Any:
    """What a model under :func:`use_tree_attention` takes as ``attention_mask`` for one tree.

    Args:
        subtree_ends: ``[t]`` int64, on the model's device.
    """
    if subtree_ends.device.type == "cpu":
        return subtree_ends.view(1, 1, 1, -1)
    return tree_block_mask(subtree_ends)


def tree_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The library's attention function.

    Args:
        module: the attention layer.
        query: ``[1, heads, t, width]``.
        key: ``[1, kv_heads, t, width]``.
        value: as ``key``.
        attention_mask: of :func:`tree_mask`; any other goes to the library's ``sdpa``.
        dropout: must be 0 for a tree.
        scaling: of the scores; ``width ** -0.5`` when left out.
        kwargs: what else a layer says; caps and sinks are refused for a tree.

    Returns:
        ``[1, t, heads, width]``, and no weights.

    Raises:
        ConfigError: the layer wants something that a tree cannot have.
    """
    if attention_mask is None or attention_mask.dtype != torch.int64:
        return cast(Any, sdpa_attention_forward)(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    _refuse({**kwargs, "dropout": dropout or None, "values of another width": _other_width(key, value)})
    query, key, value = (_dense(_autocast(part)) for part in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    output = cast(Tensor, _TreeAttention.apply(query, key, value, segments(attention_mask.flatten()), scale))
    return output.transpose(1, 2), None


def _refuse(options: dict[str, Any]) -> None:
    asked = [name for name in REFUSED if options.get(name) is not None]
    if asked:
        raise ConfigError(f"attention with {', '.join(asked)} cannot run over a tree; set shared_prefix = false")


def _other_width(key: Tensor, value: Tensor) -> int | None:
    return None if value.shape[-1] == key.shape[-1] else value.shape[-1]


def _autocast(part: Tensor) -> Tensor:
    """What autocast does for the library's own attention."""
    kind = part.device.type
    return part.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else part


def _dense(part: Tensor) -> Tensor:
    """The kernel walks the last dimension without a stride."""
    return part if part.stride(-1) == 1 else part.contiguous()


class _TreeAttention(torch.autograd.Function):
    """Joined flash attention; query heads that share a key head lie along the batch, so keys are never repeated."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, parts: tuple[Segment, ...], scale: float
    ) -> Tensor:
        grouped = _by_key_head(query, key.shape[1])
        output = torch.empty_like(grouped, dtype=_exact(query.dtype))
        log_sums = output.new_empty(grouped.shape[:3])
        for part in parts:
            queries, keys = slice(part.start, part.subtree_end), slice(part.start, part.stop)
            found, sums = _FLASH(
                grouped[:, :, queries],
                _for_groups(key[:, :, keys], grouped),
                _for_groups(value[:, :, keys], grouped),
                0.0,
                True,
                scale=scale,
            )
            _join(output[:, :, queries], log_sums[:, :, queries], found, sums, is_first=part.is_root)
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, log_sums)
        ctx.parts, ctx.scale = parts, scale
        return _by_query_head(output)

    @staticmethod
    @cast(Any, once_differentiable)
    def backward(ctx: Any, *grads: Any) -> Any:
        query, key, value, output, log_sums = ctx.saved_tensors
        grouped = _by_key_head(query, key.shape[1])
        grad_output = _by_key_head(_dense(grads[0]), key.shape[1])
        grad_query = torch.zeros_like(grouped, dtype=_exact(query.dtype))
        grad_key, grad_value = torch.empty_like(key), torch.empty_like(value)
        for part in ctx.parts:
            queries, keys = slice(part.start, part.subtree_end), slice(part.start, part.stop)
            by_query, by_key, by_value = _FLASH_BACKWARD(
                grad_output[:, :, queries],
                grouped[:, :, queries],
                _for_groups(key[:, :, keys], grouped),
                _for_groups(value[:, :, keys], grouped),
                output[:, :, queries],
                log_sums[:, :, queries],
                0.0,
                True,
                scale=ctx.scale,
            )
            grad_query[:, :, queries] += by_query
            grad_key[:, :, keys] = by_key.sum(0, keepdim=True)
            grad_value[:, :, keys] = by_value.sum(0, keepdim=True)
        return _by_query_head(grad_query.to(query.dtype)), grad_key, grad_value, None, None


def _join(output: Tensor, log_sums: Tensor, found: Tensor, sums: Tensor, *, is_first: bool) -> None:
    """Take the attention to some more keys into what was found before, in place."""
    if is_first:
        output.copy_(found)
        log_sums.copy_(sums)
        return
    joined = torch.logaddexp(log_sums, sums)
    output.mul_((log_sums - joined).exp_().unsqueeze(-1))
    output.addcmul_(found.to(output.dtype), (sums - joined).exp_().unsqueeze(-1))
    log_sums.copy_(joined)


def _by_key_head(query: Tensor, key_heads: int) -> Tensor:
    """``[1, heads, t, width]`` -> ``[groups, key_heads, t, width]``, a view."""
    return query[0].unflatten(0, (key_heads, -1)).transpose(0, 1)


def _by_query_head(grouped: Tensor) -> Tensor:
    """``[groups, key_heads, t, width]`` -> ``[1, heads, t, width]``."""
    return grouped.transpose(0, 1).flatten(0, 1).unsqueeze(0)


def _for_groups(part: Tensor, grouped: Tensor) -> Tensor:
    """``[1, key_heads, n, width]`` -> the same for every group, a view."""
    return part.expand(grouped.shape[0], -1, -1, -1)


def _exact(dtype: torch.dtype) -> torch.dtype:
    """In which parts are joined, and in which the kernel gives log-sums."""
    return torch.promote_types(dtype, torch.float32)


AttentionInterface.register(CPU_ATTENTION, tree_attention_forward)
AttentionMaskInterface.register(CPU_ATTENTION, sdpa_mask)
