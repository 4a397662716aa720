"""Completions on the terminal: what the model said, as it trains on it."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.panel import Panel
from rich.text import Text
from transformers import TrainerCallback

from longrein.types import Row


class CompletionPrinter(TrainerCallback):
    """Prints some rows of the step at every log line: context dim, trained tokens bright.

    Args:
        rows: gives the rows of the step in progress.
        tokenizer: anything with ``decode(ids) -> str``.
        count: rows to print.
    """

    def __init__(self, rows: Callable[[], Sequence[Row]], tokenizer: Any, count: int) -> None:
        self._rows = rows
        self._tokenizer = tokenizer
        self._count = count
        self._console = Console()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Print the first rows of the step."""
        for row in self._rows()[: self._count]:
            title = f"step {state.global_step} · {row.rollout_id} · advantage {row.advantage:+.2f}"
            self._console.print(Panel(self._text(row), title=title))

    def _text(self, row: Row) -> Text:
        text = Text()
        for start, stop in _runs(row):
            said = self._tokenizer.decode(row.token_ids[start:stop].tolist())
            text.append(said, style="bold" if row.loss_mask[start] else "dim")
        return text


def _runs(row: Row) -> Iterator[tuple[int, int]]:
    """Stretches of tokens that all train or all do not."""
    edges = (np.flatnonzero(np.diff(row.loss_mask)) + 1).tolist()
    yield from zip([0, *edges], [*edges, row.token_ids.size], strict=True)
