"""Where weights are written: a folder of the run's own, whatever else is in the one that was given."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from longrein.errors import ConfigError
from longrein.train.vllm.choose import SyncSettings, vllm_receiver, weights_folder
from tests.engines.vllm.stand_in import Settings, StandIn

HERE = ("http://127.0.0.1:8000",)


def test_in_a_given_folder_each_run_has_its_own() -> None:
    one = weights_folder("/dev/shm", "/runs/one", HERE)
    assert Path(one).parent == Path("/dev/shm")
    assert one == weights_folder("/dev/shm", "/runs/../runs/one", HERE), "a resumed run finds what it left"
    assert one != weights_folder("/dev/shm", "/other/one", HERE)
    assert weights_folder("", "/runs/one", HERE) == "/runs/one/engine-weights"
    with pytest.raises(ConfigError, match="not on this machine"):
        weights_folder("", "/runs/one", ("http://far:8000",))


async def test_what_others_have_in_a_given_folder_stays(tmp_path: Path) -> None:
    given = tmp_path / "shared"
    (given / "somebody" / "else").mkdir(parents=True)
    (given / "precious.txt").write_text("mine")
    async with StandIn(Settings()).listening() as server:
        folder = weights_folder(str(given), str(tmp_path / "run"), (server.url,))
        settings = SyncSettings(urls=(server.url,), weights_folder=folder, outage_timeout_s=60.0)
        receiver = await asyncio.to_thread(vllm_receiver, settings, {})
        for version in (1, 2):
            await asyncio.to_thread(receiver.update, {"a": torch.ones(2)}, version)
        assert [path.name for path in Path(folder).iterdir()] == ["v2"]
        await asyncio.to_thread(receiver.close)
    assert sorted(path.name for path in given.iterdir()) == ["precious.txt", "somebody"]
    assert (given / "somebody" / "else").is_dir()
