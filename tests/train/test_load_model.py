"""A model folder that is not whole is one clear error; it never trains with random tensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from longrein.errors import CheckpointError, ConfigError
from longrein.train.load_model import load_model
from longrein.train.sft import SftConfig, train_sft
from tests import tiny
from tests.train.test_trainer import config, good, trainer
from tests.train.toy import Recorder, Script, row

Q = "model.layers.0.self_attn.q_proj.weight"


def configured(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def with_tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})

    return rewrite


def cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def as_a_bad_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"nothing")


def without_tokenizer(folder: Path) -> None:
    for path in (*folder.glob("token*"), *folder.glob("chat*")):
        path.unlink()


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "a layer more": (
        configured(num_hidden_layers=3),
        r"lack model\.layers\.2\.input_layernorm\.weight, .* and 6 more;",
    ),
    "a tensor less": (with_tensors(lambda tensors: tensors.pop(Q)), f"lack {Q};"),
    "no embedding": (with_tensors(lambda tensors: tensors.pop("model.embed_tokens.weight")), "lack lm_head.weight"),
    "another shape": (with_tensors(lambda tensors: tensors.update({Q: torch.zeros(3, 3)})), rf"{Q} of shape \[3, 3\]"),
    "cut off": (cut_off, "cannot be loaded as a causal LM"),
    "a bad pickle": (as_a_bad_pickle, "cannot be loaded as a causal LM"),
    "no such model": (configured(num_attention_heads=5), "cannot be loaded as a causal LM"),
    "no tokenizer": (without_tokenizer, "tokenizer of model .* pass processing_class"),
    "a bad tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}") and None, "tokenizer of model"),
}


def broken(folder: Path, tmp_path: Path, how: Callable[[Path], None]) -> Path:
    copied = tmp_path / "model"
    shutil.copytree(folder, copied)
    how(copied)
    return copied


@pytest.mark.parametrize("kind", BROKEN)
def test_a_folder_that_is_not_whole_is_one_clear_error(folder: Path, tmp_path: Path, kind: str) -> None:
    how, says = BROKEN[kind]
    model, worker, receiver = broken(folder, tmp_path, how), Script(good), Recorder()
    with pytest.raises(CheckpointError, match=says) as caught:
        trainer(model, config(tmp_path / "grpo"), worker, receiver)
    assert str(model) in str(caught.value)
    assert not worker.started
    with pytest.raises(CheckpointError, match=says):
        train_sft(str(model), [row([1, 2], [1])], SftConfig(output_dir=str(tmp_path / "sft"), use_cpu=True))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "gpt_neox", "qwen3"])
def test_a_whole_one_is_loaded_as_it_is(tmp_path: Path, family: str, tied: bool) -> None:
    """Tied weights are saved once, and are not missed."""
    folder = tiny.save_model(tmp_path / "model", family, tie_word_embeddings=tied)
    loaded = load_model(str(folder), config(tmp_path))
    expected = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.state_dict().items())


def test_a_tensor_too_many_is_left_to_the_librarys_warning(folder: Path, tmp_path: Path) -> None:
    model = broken(folder, tmp_path, with_tensors(lambda tensors: tensors.update(more=torch.zeros(1))))
    assert load_model(str(model), config(tmp_path)).num_parameters() > 0


def test_a_loaded_model_that_names_no_folder_needs_a_tokenizer(folder: Path, tmp_path: Path) -> None:
    model = cast(Any, AutoModelForCausalLM).from_config(tiny.config("llama"))
    with pytest.raises(ConfigError, match=r"names no folder .* pass processing_class"):
        train_sft(model, [row([1, 2], [1])], SftConfig(output_dir=str(tmp_path), use_cpu=True))
