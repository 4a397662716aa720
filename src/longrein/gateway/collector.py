"""The garbage collector, told what stays."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def loaded_stays() -> Generator[None]:
    """While sessions run, the collector passes over whatever was loaded before: libraries, tokenizer, template.

    They are a million objects that no request makes garbage of; walking them is a fifth of what a long prompt costs.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
