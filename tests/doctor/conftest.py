from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.process import LocalEngineProcess
from longrein.engines.render import ChatRenderer
from tests import tiny

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_model(tmp_path_factory.mktemp("doctor") / "model")


@pytest.fixture(scope="session")
def renderer(folder: Path) -> ChatRenderer:
    return ChatRenderer.load(str(folder))


@pytest.fixture(scope="session")
def engine(folder: Path) -> Iterator[LocalEngineProcess]:
    with LocalEngineProcess(LocalEngineConfig(model=str(folder), threads=1)) as process:
        yield process
