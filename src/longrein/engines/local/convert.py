"""GGUF to a safetensors folder, once: every later part sees an ordinary model folder.

Reading a GGUF costs a slow dequantisation (half a minute for 135M parameters) and needs torch, so it is done
when a model is fetched and never again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from longrein.errors import CheckpointError


def convert_gguf(gguf_path: Path, out_folder: Path, *, end_of_turn: str) -> Path:
    """Write the model of a GGUF file as fp32 safetensors with its tokenizer; returns ``out_folder``.

    ``end_of_turn`` is the token that ends a turn: it becomes the end-of-sequence token of model, tokenizer and
    generation config, whatever the file says. The folder appears whole or not at all, and one that is already
    there is left as it is.

    Raises:
        CheckpointError: the file is missing, is no GGUF, or its vocabulary lacks ``end_of_turn``.
    """
    if (out_folder / "config.json").is_file():
        return out_folder
    _check_magic(gguf_path)
    out_folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out_folder.parent, prefix=f".{out_folder.name}-") as temporary:
        half_made = Path(temporary) / out_folder.name
        _save(_load(gguf_path), _tokenizer(gguf_path, end_of_turn), half_made)
        half_made.rename(out_folder)
    return out_folder


def _check_magic(gguf_path: Path) -> None:
    if not gguf_path.is_file():
        raise CheckpointError(f"{gguf_path}: no such GGUF file. Give the path of one.")
    with gguf_path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise CheckpointError(f"{gguf_path}: not a GGUF file (it does not begin with 'GGUF'). Fetch it again.")


def _load(gguf_path: Path) -> Any:
    model: Any = cast(Any, AutoModelForCausalLM).from_pretrained(
        gguf_path.parent, gguf_file=gguf_path.name, dtype=torch.float32, local_files_only=True
    )
    # The weights are plain fp32 now, but these two make save_pretrained refuse them as "quantised".
    del model.config.quantization_config
    del model.hf_quantizer
    return model


def _tokenizer(gguf_path: Path, end_of_turn: str) -> Any:
    tokenizer: Any = cast(Any, AutoTokenizer).from_pretrained(
        gguf_path.parent, gguf_file=gguf_path.name, local_files_only=True
    )
    if end_of_turn not in tokenizer.get_vocab():
        raise CheckpointError(
            f"{gguf_path}: its vocabulary has no token {end_of_turn!r}. Pass the token that ends a turn in this model."
        )
    tokenizer.eos_token = end_of_turn
    if tokenizer.pad_token is None:
        tokenizer.pad_token = end_of_turn
    return tokenizer


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    for name, token_id in ends.items():
        setattr(model.config, name, token_id)
    model.generation_config = GenerationConfig(bos_token_id=model.config.bos_token_id, **ends)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
