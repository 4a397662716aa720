from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.fused import FusedForward
from longrein.engines.local.model import LocalModel, load_model
from longrein.engines.local.parts import TorchParts
from tests import tiny

BY_TORCH = " by torch"
"""At the end of a family's name: the fused pass without compiled loops, as where numba is not installed."""

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A tiny random model of a family, on disk."""
    folders: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in folders:
            folders[family] = tiny.save_model(
                tmp_path_factory.mktemp(family),
                family,
                # Large weights: attention to one token too many must show in the logprobs.
                initializer_range=0.2,
            )
        return folders[family]

    return make


@pytest.fixture(scope="session")
def model_of(folder_of: Callable[[str], Path]) -> Callable[[str], LocalModel]:
    """The same, loaded in this process."""
    models: dict[str, LocalModel] = {}

    def load(family: str) -> LocalModel:
        if family not in models:
            folder = folder_of(family.removesuffix(BY_TORCH))
            model = models[family] = load_model(LocalEngineConfig(model=str(folder), threads=1))
            if family.endswith(BY_TORCH):
                model.forward = FusedForward(model.module, model.context_length, TorchParts())
        return models[family]

    return load


@pytest.fixture
def llama(model_of: Callable[[str], LocalModel]) -> LocalModel:
    return model_of("llama")
