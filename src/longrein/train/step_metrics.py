"""Numbers of the steps since the last log line."""

from __future__ import annotations

from collections.abc import Mapping

COUNT = "count/"
"""Prefix of numbers that are summed over steps."""
MAXIMUM = "_max"
"""Suffix of numbers of which the largest is kept. All others are averaged."""


class StepMetrics:
    """Collects one mapping a step, and gives one mapping for all of them."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, metrics: Mapping[str, float]) -> None:
        """Note the numbers of one step (or of a part of it, under other names)."""
        for name, value in metrics.items():
            self._values.setdefault(name, []).append(float(value))

    def take(self) -> dict[str, float]:
        """All numbers since the last call, by the rules of :data:`COUNT` and :data:`MAXIMUM`."""
        taken = {name: _joined(name, values) for name, values in self._values.items()}
        self._values.clear()
        return taken


def _joined(name: str, values: list[float]) -> float:
    if name.startswith(COUNT):
        return sum(values)
    return max(values) if name.endswith(MAXIMUM) else sum(values) / len(values)
