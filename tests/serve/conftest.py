from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.process import LocalEngineProcess
from tests import tiny
from tests.serve.rig import CONTEXT, Rig, serving


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights that the server starts with."""
    return tiny.save_model(tmp_path_factory.mktemp("first"), seed=0, initializer_range=0.2)


@pytest.fixture(scope="session")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights of the same model."""
    return tiny.save_model(tmp_path_factory.mktemp("second"), seed=1, initializer_range=0.2)


@pytest.fixture(scope="session")
def process(first: Path) -> Iterator[LocalEngineProcess]:
    with LocalEngineProcess(LocalEngineConfig(model=str(first), context_length=CONTEXT)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(process: LocalEngineProcess, first: Path) -> AsyncIterator[Rig]:
    async with serving(process, first) as running:
        yield running
