"""One server for all tests of a session: it takes half a minute to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from longrein.engines.vllm.process import ServerProcess
from tests.engines.vllm import rig


class Served:
    """The server, and the model that it was started with."""

    def __init__(self, url: str, process: ServerProcess, model: Path) -> None:
        self.url = url
        self.process = process
        self.model = model


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("vllm")
    model = rig.save_model(folder / "model")
    with rig.started(folder, model, rig.COMMAND, rig.WEIGHT_ROUTES) as (url, process):
        yield Served(url, process, model)
