"""How the rows of a micro-batch lie in what the model is fed."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from longrein.errors import ConfigError
from longrein.train.tree_attention import tree_mask, use_tree_attention


def library_model(model: nn.Module) -> PreTrainedModel:
    """The library's model in one that may be wrapped.

    Raises:
        ConfigError: no part of it is a model of the library.
    """
    found = _library_model(model)
    if found is None:
        raise ConfigError(f"{type(model).__name__} holds no model of the transformers library; give one")
    return found


def wants_router_loss(model: nn.Module) -> bool:
    """Its configuration asks for a loss that balances experts."""
    found = _library_model(model)
    config: Any = found.config.get_text_config() if found is not None else None
    return bool(getattr(config, "output_router_logits", False) and getattr(config, "router_aux_loss_coef", 0.0))


def _library_model(model: nn.Module) -> PreTrainedModel | None:
    return next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)


def _options(model: nn.Module) -> dict[str, Any]:
    """The library's balancing loss is not wanted: it counts padding, and would take the table of a tree for a mask."""
    return {"use_cache": False, **({"output_router_logits": False} if wants_router_loss(model) else {})}


class Layout(Protocol):
    """Runs a model on the input ids of one micro-batch."""

    def forward(self, model: nn.Module, input_ids: Tensor) -> Any:
        """The output of the model's own ``forward`` for ``[b, t]`` input ids; ``model`` may be wrapped."""
        ...

    def to(self, device: torch.device) -> Layout:
        """The same on a device."""
        ...

    def attention_pairs(self, input_ids: Tensor) -> int:
        """How many pairs of tokens attend."""
        ...


class PaddedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Each row a line of its own, padded on the right.

    There is no attention mask: under causal attention a token never sees the padding to its right, and without a mask
    the fastest attention kernels can run.
    """

    def forward(self, model: nn.Module, input_ids: Tensor) -> Any:
        """See :class:`Layout`."""
        return model(input_ids=input_ids, **_options(model))

    def to(self, device: torch.device) -> Layout:
        """See :class:`Layout`."""
        return self

    def attention_pairs(self, input_ids: Tensor) -> int:
        """See :class:`Layout`. Padding computes too."""
        rows, width = input_ids.shape
        return rows * width * (width + 1) // 2


class TreeRows(msgspec.Struct, frozen=True, kw_only=True):
    """All rows in one line, as a :class:`~longrein.train.prefix_tree.PrefixTree`: ``b`` is 1."""

    depths: Tensor
    """``[t]`` int64: position ids."""
    subtree_ends: Tensor
    """``[t]`` int64."""

    def forward(self, model: nn.Module, input_ids: Tensor) -> Any:
        """See :class:`Layout`. The model takes tree masks from then on, so that a recomputation finds the same."""
        use_tree_attention(model)
        return model(
            input_ids=input_ids,
            position_ids=self.depths.unsqueeze(0),
            attention_mask=tree_mask(self.subtree_ends),
            **_options(model),
        )

    def to(self, device: torch.device) -> Layout:
        """See :class:`Layout`."""
        return TreeRows(depths=self.depths.to(device), subtree_ends=self.subtree_ends.to(device))

    def attention_pairs(self, input_ids: Tensor) -> int:
        """See :class:`Layout`."""
        return int(self.depths.sum()) + self.depths.numel()
