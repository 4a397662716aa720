"""The weights of a saved model folder, for an engine that already runs another version of it."""

# safetensors is partly untyped.
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from longrein.errors import CheckpointError


def folder_weights(folder: Path) -> Mapping[str, Tensor]:
    """Every tensor of a folder's safetensors files by name, on the CPU.

    Raises:
        CheckpointError: no safetensors file, or a damaged one.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} holds no safetensors file; give a folder that save_pretrained wrote")
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            weights |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}. Save the model again.") from error
    return weights
