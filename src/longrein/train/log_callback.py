"""From the library's log calls to our sinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from longrein.metrics import MetricsSink


class MetricsCallback(TrainerCallback):
    """Writes every step's numbers to the sinks, in order."""

    def __init__(self, sinks: Sequence[MetricsSink]) -> None:
        self._sinks = sinks

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_kwargs: Any,
    ) -> None:
        """One call a step; the library's closing summary (``train_runtime``) is not a step."""
        if not logs or "train_runtime" in logs:
            return
        numbers = {key: float(value) for key, value in logs.items() if isinstance(value, int | float)}
        for sink in self._sinks:
            sink.write(state.global_step, numbers)
