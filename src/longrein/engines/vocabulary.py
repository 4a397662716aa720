"""Whether two tokenizers mean the same by a token id."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping


def vocabulary_digest(vocabulary: Mapping[str, int]) -> str:
    """Equal for equal vocabularies, special and added tokens included.

    Args:
        vocabulary: token -> id, as ``tokenizer.get_vocab()`` gives it.
    """
    told = json.dumps(sorted(vocabulary.items()), ensure_ascii=False)
    return hashlib.sha256(told.encode(errors="surrogatepass")).hexdigest()
