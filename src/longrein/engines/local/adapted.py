"""The engine's weights: those of the last full update, with an adapter added to some of them or not."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from longrein.engines.local import wire
from longrein.engines.local.manifest import Manifest
from longrein.engines.local.weights import load_block, map_block, save_block

LORA_A = ".lora_A.weight"
LORA_B = ".lora_B.weight"
WEIGHT = ".weight"


class AdaptedModule:
    """The engine process's end of the shared block.

    The block keeps the weights without adapter, so each adapter is added to them and never to what an earlier one
    left: nothing drifts. An engine that never gets an adapter reads the block and no more.

    Args:
        module: the model that samples; its weights are changed in place.
        manifest: the layout of its weights in the block.
        file_descriptor: of the block.
    """

    def __init__(self, module: torch.nn.Module, manifest: Manifest, file_descriptor: int) -> None:
        self._module = module
        self._file_descriptor = file_descriptor
        self._base = map_block(manifest, file_descriptor)
        self._base_is_in_block = False
        self._adapted: frozenset[str] = frozenset()
        self.unsettled = False
        """Whether weights have begun to change that nobody computes with yet, all of them or a part."""

    def settle(self) -> None:
        """What was taken is computed with."""
        self.unsettled = False

    def take(self, swap: wire.NewWeights) -> None:
        """Take what the owner has put into the block. Broken off, it may be begun again."""
        match swap:
            case wire.Swap():
                self._take_whole()
            case wire.SwapAdapter(manifest=manifest, scalings=scalings):
                self._take_adapter(map_block(manifest, self._file_descriptor), scalings)

    def _take_whole(self) -> None:
        self.unsettled = True
        load_block(self._module, self._base)
        self._base_is_in_block = True
        self._adapted = frozenset()

    def _take_adapter(self, adapter: Mapping[str, torch.Tensor], scalings: Mapping[str, float]) -> None:
        if not self._base_is_in_block:
            # No full update has come yet: the weights that the engine was started with are the base.
            save_block(self._module, self._base)
            self._base_is_in_block = True
        self.unsettled = True
        former, self._adapted = self._adapted, self._adapted | scalings.keys()
        with torch.no_grad():
            for name in former - scalings.keys():
                self._module.get_parameter(name).copy_(self._base[name])
            for name, scaling in scalings.items():
                module = name.removesuffix(WEIGHT)
                delta = adapter[module + LORA_B] @ adapter[module + LORA_A]
                # In float32, and rounded once to the engine's own dtype.
                self._module.get_parameter(name).copy_(self._base[name].float() + scaling * delta)
        self._adapted = frozenset(scalings)
