"""The library's own progress bars, which it switches for the whole process."""

# transformers is partly untyped:
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from transformers.utils import logging as library_logging


@contextmanager
def progress_bars(*, shown: bool) -> Generator[None, None, None]:
    """Hide them unless they are wanted; afterwards all is as it was."""
    if shown or not library_logging.is_progress_bar_enabled():
        yield
        return
    library_logging.disable_progress_bar()
    try:
        yield
    finally:
        library_logging.enable_progress_bar()
