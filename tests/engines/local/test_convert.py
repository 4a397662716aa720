from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType
from transformers import AutoModelForCausalLM, AutoTokenizer

from longrein.engines.local.convert import convert_gguf
from longrein.errors import CheckpointError
from tests import tiny

LAYER = {
    "attn_norm": (64,),
    "ffn_norm": (64,),
    "attn_q": (64, 64),
    "attn_k": (32, 64),
    "attn_v": (32, 64),
    "attn_output": (64, 64),
    "ffn_gate": (128, 64),
    "ffn_up": (128, 64),
    "ffn_down": (64, 128),
}


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A one-layer Llama in a real GGUF file, with the byte tokenizer of the other tests."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    vocab = [*sorted(tiny.tokenizer().get_vocab().items(), key=lambda item: item[1]), ("ab", -1)]
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(256)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocab))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([token for token, _ in vocab])
    writer.add_token_types([TokenType.CONTROL if token in tiny.SPECIAL else TokenType.NORMAL for token, _ in vocab])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    rng = np.random.default_rng(0)
    shapes = {f"blk.0.{name}.weight": shape for name, shape in LAYER.items()}
    shapes |= {"token_embd.weight": (len(vocab), 64), "output_norm.weight": (64,)}
    for name, shape in shapes.items():
        writer.add_tensor(name, rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
