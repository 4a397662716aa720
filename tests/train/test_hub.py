"""What the library's ``push_to_hub`` uploads of a trainer's folder, by the library's own filter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from huggingface_hub.utils import filter_repo_objects  # pyright: ignore[reportUnknownVariableType] - untyped

from longrein.train.whole_folder import written_whole
from tests.train.test_trainer import config, good, trainer
from tests.train.toy import Recorder, Script


class Hub:
    """No hub can be reached: chooses files as ``upload_folder`` does, and keeps their names."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def upload_folder(self, *, folder_path: str, ignore_patterns: list[str], **_others: Any) -> None:
        files = [path.relative_to(folder_path).as_posix() for path in Path(folder_path).rglob("*") if path.is_file()]
        self.files |= set(filter_repo_objects(files, ignore_patterns=ignore_patterns))


def test_neither_rollouts_nor_checkpoints_are_uploaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a refused step, a checkpoint that was undone and one whose writer was killed."""
    hub = Hub()
    monkeypatch.setattr("transformers.trainer.hf_api", lambda: hub)
    refused = msgspec.structs.replace(good(1), advantages=(-1e39, 1e39))
    saving = {"save_strategy": "steps", "save_steps": 1, "max_staleness": 2}
    trainer(folder, config(tmp_path, **saving), Script([good(0), refused]), Recorder()).train()
    made = trainer(folder, config(tmp_path, **saving, max_steps=1), Script([]), Recorder())
    made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    with pytest.raises(InterruptedError), written_whole(tmp_path / "checkpoint-3") as part:
        (part / "optimizer.pt").write_text("half")
        raise InterruptedError
    made.save_model()
    made.hub_model_id = "org/model"
    made.push_to_hub()

    assert {"config.json", "model.safetensors", "tokenizer.json"} <= hub.files
    others = {path for path in tmp_path.iterdir() if path.is_dir()}
    assert len(others) == 4, "rows of a refused step, a checkpoint, an undone one, an unfinished one"
    assert not {name for name in hub.files if "/" in name}
