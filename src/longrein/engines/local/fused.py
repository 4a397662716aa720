"""A pass without the library's layers: one flat batch of tokens, joined projections, weights packed for the kernel.

Knows decoders built like Llama (also Mistral, Qwen2, Qwen3, SmolLM, Gemma, Phi-3): RMS norm, rotary positions over
whole heads, grouped queries, a gated MLP. That a model *is* one is read off its modules, and then proven: :mod:`.model`
compares its logits with the library's before it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from longrein.engines.local.attend import Attend, Heads, PieceAttend, Turns
from longrein.engines.local.forward import DecodeRows, Piece
from longrein.engines.local.linear import Linear, joined
from longrein.engines.local.parts import Norm, Parts

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_APART = {"q_proj", "k_proj", "v_proj", "o_proj"}
_ATTENTIONS = (_APART, _APART | {"q_norm", "k_norm"}, {"qkv_proj", "o_proj"})
_MLPS = ({"gate_proj", "up_proj", "down_proj", "act_fn"}, {"gate_up_proj", "down_proj", "activation_fn"})
_FIXED_ROPES = ("default", "linear", "llama3", "yarn")


def unlike_llama(model: Any) -> str:
    """Why the fused pass cannot compute this model; empty if it may."""
    base = model.base_model
    for name in ("embed_tokens", "layers", "norm", "rotary_emb"):
        if not hasattr(base, name):
            return f"it has no {name}"
    if reason := _unlike_positions(model):
        return reason
    for layer in base.layers:
        if _children(layer) != _LAYER or _children(layer.mlp) not in _MLPS:
            return f"its layers hold {sorted(_children(layer) | _children(layer.mlp))}"
        if _children(layer.self_attn) not in _ATTENTIONS:
            return f"its attention holds {sorted(_children(layer.self_attn))}"
        if reason := _unlike_parts(layer):
            return reason
    return ""


def _unlike_positions(model: Any) -> str:
    rope = getattr(model.base_model.rotary_emb, "rope_type", "default")
    if rope not in _FIXED_ROPES:
        return f"its rotary positions are of type {rope}"
    parameters: dict[str, Any] = getattr(model.config, "rope_parameters", None) or {}
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        return "its rotary positions turn a part of each head"
    return "its queries are scaled by their position" if parameters.get("llama_4_scaling_beta") else ""


def _unlike_parts(layer: Any) -> str:
    attention, mlp = layer.self_attn, layer.mlp
    for norm in (layer.input_layernorm, layer.post_attention_layernorm):
        if getattr(norm, "weight", None) is None or not (hasattr(norm, "variance_epsilon") or hasattr(norm, "eps")):
            return f"its norms are {type(norm).__name__}"
    for parts in (_qkv_of(attention), _gate_up_of(mlp)):
        if len({part.bias is None for part in parts}) > 1:
            return "only some of its projections have a bias"
    return ""


def _children(module: Any) -> set[str]:
    """Names of what does something when it samples."""
    return {name for name, child in module.named_children() if not isinstance(child, torch.nn.Dropout)}


def _qkv_of(attention: Any) -> list[Any]:
    together = getattr(attention, "qkv_proj", None)
    return [attention.q_proj, attention.k_proj, attention.v_proj] if together is None else [together]


def _gate_up_of(mlp: Any) -> list[Any]:
    together = getattr(mlp, "gate_up_proj", None)
    return [mlp.gate_proj, mlp.up_proj] if together is None else [together]


def _norm_of(norm: Any, parts: Parts) -> Norm:
    return parts.norm(_gain(norm), getattr(norm, "variance_epsilon", None) or norm.eps)


def _gain(norm: Any) -> torch.Tensor:
    """What a norm multiplies by: its weight, or one more (Gemma); tried on ones."""
    weight: torch.Tensor = norm.weight.detach()
    seen = norm(torch.ones_like(weight))
    one_more = 1 + weight
    return one_more if (seen - one_more).abs().sum() < (seen - weight).abs().sum() else weight.clone()


class _Layer:
    """One decoder layer's weights, copied out of its module, and its two halves."""

    def __init__(self, layer: Any, parts: Parts) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._scale: float = attention.scaling
        self._size: int = attention.head_dim
        qkv = _qkv_of(attention)
        self._queries: int = attention.o_proj.weight.shape[1] // self._size
        self._keys = (sum(part.weight.shape[0] for part in qkv) // self._size - self._queries) // 2
        self._before_attention = _norm_of(layer.input_layernorm, parts)
        self._before_mlp = _norm_of(layer.post_attention_layernorm, parts)
        head_norms = [attention.q_norm, attention.k_norm] if hasattr(attention, "q_norm") else []
        self._head_norms = [_norm_of(norm, parts) for norm in head_norms]
        self._qkv: Linear = joined(qkv)
        self._out: Linear = joined([attention.o_proj])
        self._gate_up: Linear = joined(_gate_up_of(mlp))
        self._down: Linear = joined([mlp.down_proj])
        self._act = mlp.act_fn if hasattr(mlp, "act_fn") else mlp.activation_fn
        self._inner: int = mlp.down_proj.weight.shape[1]

    def run(self, index: int, rows: torch.Tensor, attends: list[Attend]) -> torch.Tensor:
        """``rows`` ``[tokens, hidden]`` after this layer; overwritten."""
        projected = self._qkv(self._before_attention(rows)).view(rows.shape[0], -1, self._size)
        turning = self._normed(projected[:, : self._queries + self._keys])
        heads = Heads(turning=turning, values=projected[:, self._queries + self._keys :], scale=self._scale)
        seen = [attend.run(index, heads) for attend in attends]
        rows = rows.add_(self._out(seen[0] if len(seen) == 1 else torch.cat(seen)))
        both = self._gate_up(self._before_mlp(rows))
        gated = self._act(both[:, : self._inner]).mul_(both[:, self._inner :])
        return rows.add_(self._down(gated))

    def _normed(self, heads: torch.Tensor) -> torch.Tensor:
        if not self._head_norms:
            return heads
        of_queries, of_keys = self._head_norms
        return torch.cat([of_queries(heads[:, : self._queries]), of_keys(heads[:, self._queries :])], dim=1)


class FusedForward:
    """A :class:`~.forward.Forward` for decoders built like Llama. Holds a second, packed copy of the weights."""

    name = "fused"

    def __init__(self, model: Any, context_length: int, parts: Parts) -> None:
        self._model = model
        self._parts = parts
        self._cosines, self._sines = _rotary_table(model, context_length)
        self._layers: list[_Layer] = []
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy and pack the module's weights anew."""
        base = self._model.base_model
        packed, self._layers = self._layers, []
        for layer in base.layers:
            # One after another, so that each takes the memory of its like that goes.
            del packed[:1]
            self._layers.append(_Layer(layer, self._parts))
        self._norm = _norm_of(base.norm, self._parts)
        self._head: Linear = joined([self._model.get_output_embeddings()])

    def run(self, decodes: list[DecodeRows], pieces: list[Piece]) -> torch.Tensor:
        """Logits float32 ``[n, vocab]`` of the decoded rows; see :class:`~.forward.Forward`."""
        token_ids = np.concatenate([*(rows.token_ids for rows in decodes), *(piece.token_ids for piece in pieces)])
        ranges = [np.arange(piece.start, piece.length) for piece in pieces]
        positions = torch.as_tensor(np.concatenate([*(rows.positions for rows in decodes), *ranges]))
        turns = Turns(cosines=self._cosines[positions], sines=self._sines[positions])
        attends: list[Attend] = []
        first = 0
        for rows in decodes:
            attends.append(self._parts.decode(rows, first, turns))
            first += rows.token_ids.size
        decoded = first
        for piece in pieces:
            attends.append(PieceAttend(piece, first, turns))
            first += piece.token_ids.size
        rows = self._model.base_model.embed_tokens(torch.as_tensor(token_ids.astype(np.int64)))
        for index, layer in enumerate(self._layers):
            rows = layer.run(index, rows, attends)
        return self._head(self._norm(rows[:decoded])).float() if decoded else torch.empty(0, 0)


@torch.inference_mode()
def _rotary_table(model: Any, context_length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines ``[context, 1, size]``; the sines of the first half negated, to go with ``roll``."""
    like = torch.empty(1, dtype=model.dtype)
    cosines, sines = model.base_model.rotary_emb(like, torch.arange(context_length).unsqueeze(0))
    half = sines.shape[-1] // 2
    signed = torch.cat([-sines[..., :half], sines[..., half:]], dim=-1)
    return cosines[0].unsqueeze(1).contiguous(), signed[0].unsqueeze(1).contiguous()
