"""A tiny Llama in a real GGUF file, with the byte tokenizer of the other tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType

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


def save_gguf(path: Path) -> Path:
    """Write one layer of random weights; returns the path."""
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
