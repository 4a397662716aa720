"""The tokenizer of the benchmark: SmolLM2's, with the tags of tool calls and thoughts as tokens of their own.

verifiers renders only for model families that it knows; with these tokens its ``qwen3`` family fits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from tokenizers import AddedToken

TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


def make_tokenizer(model: Path, folder: Path) -> Path:
    """Write it, if it is not there.

    Raises:
        SystemExit: ``model`` has no tokenizer.
    """
    if not (model / "tokenizer.json").exists():
        raise SystemExit(f"{model} has no tokenizer.json; make it with: make model")
    if not (folder / "tokenizer.json").exists():
        untyped: Any = transformers
        tokenizer = untyped.AutoTokenizer.from_pretrained(str(model))
        tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
        # renderers takes a token for missing when it is the unknown one.
        tokenizer.unk_token = "<repo_name>"
        tokenizer.save_pretrained(str(folder))
    return folder
