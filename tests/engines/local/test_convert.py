from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from longrein.engines.local.convert import convert_gguf
from longrein.errors import CheckpointError
from tests.tiny_gguf import save_gguf


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def load(folder: Path) -> tuple[Any, Any]:
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def test_the_folder_is_an_ordinary_model_whose_turns_end_as_said(gguf_path: Path, tmp_path: Path) -> None:
    folder = convert_gguf(gguf_path, tmp_path / "model", end_of_turn="<|im_end|>")
    model, tokenizer = load(folder)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.eos_token_id == model.config.eos_token_id == model.generation_config.eos_token_id == end
    assert tokenizer.pad_token_id is not None
    assert not hasattr(model.config, "quantization_config")
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    text = "cat note.txt <|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    reread = AutoModelForCausalLM.from_pretrained(gguf_path.parent, gguf_file=gguf_path.name)
    ids = torch.tensor([[5, 6, 7, 8]])
    torch.testing.assert_close(model(input_ids=ids).logits, reread(input_ids=ids).logits)


def test_a_second_call_leaves_the_folder_alone(gguf_path: Path, tmp_path: Path) -> None:
    folder = convert_gguf(gguf_path, tmp_path / "model", end_of_turn="<|im_end|>")
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert convert_gguf(tmp_path / "gone.gguf", folder, end_of_turn="<|im_end|>") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\x03\x04 a zip"])
def test_a_file_that_is_no_gguf_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"x\.gguf: not a GGUF file"):
        convert_gguf(path, tmp_path / "model", end_of_turn="<|im_end|>")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no\.gguf: no such GGUF file"):
        convert_gguf(tmp_path / "no.gguf", tmp_path / "model", end_of_turn="<|im_end|>")


def test_an_unknown_end_of_turn_leaves_nothing_behind(gguf_path: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no token '<stop>'"):
        convert_gguf(gguf_path, tmp_path / "model", end_of_turn="<stop>")
    assert list(tmp_path.iterdir()) == []
