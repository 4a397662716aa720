"""Where numbers go: one JSON line a step, and a live table for a person."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec
from rich.console import Console


class MetricsSink(Protocol):
    """Takes the numbers of one step."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record one step. Never raises for a value that is not finite."""
        ...

    def close(self) -> None:
        """Flush what is held."""
        ...


class JsonlSink:
    """``metrics.jsonl``: one object a line, appended and flushed at once. Non-finite numbers become ``null``."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line."""
        clean = {key: (value if math.isfinite(value) else None) for key, value in metrics.items()}
        self._file.write(msgspec.json.encode({"step": step, "time_s": round(time.time(), 3), **clean}) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    step: int


def rewind(path: Path, step: int) -> None:
    """Cut ``metrics.jsonl`` back to the lines of steps up to ``step``, from where a run goes on; others follow anew.

    What is cut off is added to ``metrics-undone.jsonl`` beside it. A last line that was cut off is dropped.
    """
    if not path.exists():
        return
    kept: list[bytes] = []
    undone: list[bytes] = []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            belongs = msgspec.json.decode(line, type=_Line).step <= step
        except msgspec.DecodeError:
            continue
        (kept if belongs else undone).append(line)
    if undone:
        with path.with_name(f"{path.stem}-undone{path.suffix}").open("ab") as file:
            file.writelines(undone)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(b"".join(kept))
    part.rename(path)


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One column of the step table."""

    title: str
    key: str
    form: str


# Both rates are tokens a second: sampled by the engine since the last step, and fed through the model in training.
COLUMNS = (
    Column(title="reward", key="reward", form="{:.3f}"),
    Column(title="stale mean", key="staleness_mean", form="{:.2f}"),
    Column(title="stale max", key="staleness_max", form="{:.0f}"),
    Column(title="over a swap", key="count/completions_over_swap", form="{:.0f}"),
    Column(title="in flight", key="inflight", form="{:.0f}"),
    Column(title="queued", key="queued_groups", form="{:.0f}"),
    Column(title="sampled/s", key="sampled_tokens_per_s", form="{:.0f}"),
    Column(title="trained/s", key="tokens_per_s", form="{:.0f}"),
    Column(title="wait s", key="wait_s", form="{:.1f}"),
    Column(title="train s", key="train_s", form="{:.1f}"),
    Column(title="logp gap", key="logprob_gap_mean", form="{:.4f}"),
)


FAILED = "count/failed_"
"""Prefix of the counts of failed rollouts by reason."""


class TableSink:
    """One line a step on the console, with the time left and the failures by reason.

    ``begun_after`` is the step that a resumed run goes on from.
    """

    def __init__(self, console: Console, max_steps: int, begun_after: int = 0) -> None:
        self._console = console
        self._max_steps = max_steps
        self._begun_after = begun_after
        self._started_s = time.monotonic()
        self._console.print(
            "step".rjust(7) + "".join(column.title.rjust(12) for column in COLUMNS) + "   time left", soft_wrap=True
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print one line."""
        cells = [f"{step}/{self._max_steps}".rjust(7)]
        for column in COLUMNS:
            value = metrics.get(column.key)
            cells.append((column.form.format(value) if value is not None else "-").rjust(12))
        left_s = (time.monotonic() - self._started_s) / max(step - self._begun_after, 1) * (self._max_steps - step)
        failures = {key.removeprefix(FAILED): int(n) for key, n in metrics.items() if key.startswith(FAILED) and n}
        note = "  failures: " + ", ".join(f"{name} {n}" for name, n in sorted(failures.items())) if failures else ""
        self._console.print("".join(cells) + f"   {left_s / 60:5.1f} min{note}", highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing is held."""


class LossSink:
    """A short line a step, for training that has a loss and nothing else to tell."""

    def __init__(self, console: Console, label: str, max_steps: int) -> None:
        self._console = console
        self._label = label
        self._max_steps = max_steps

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print one line."""
        loss = f"{metrics['loss']:.3f}" if "loss" in metrics else "-"
        self._console.print(
            f"{self._label:>12}: step {step}/{self._max_steps}, loss {loss}", highlight=False, soft_wrap=True
        )

    def close(self) -> None:
        """Nothing is held."""
