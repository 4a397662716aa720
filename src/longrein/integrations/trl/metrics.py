"""The worker's numbers under names by which TRL's trainer knows how to put them together."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from longrein.train.worker_protocol import MetricsQueue

_COUNT = "count/"


class SampleMetrics:
    """What TRL's trainer sees of its metrics queue: ``get_nowait``.

    TRL sums what has the word ``total`` in its name over a logging window and averages the rest, so ``count/x`` of ours
    is ``rollout/x_total``, and any other ``x`` is ``rollout/x``.

    Args:
        measured: what the rollout process measures.
    """

    def __init__(self, measured: MetricsQueue) -> None:
        self._measured = measured
        self._counted: deque[dict[str, float]] = deque()

    def count(self, counts: Mapping[str, float]) -> None:
        """Add to counters; zeros are left out."""
        numbers = {f"rollout/{name}_total": float(number) for name, number in counts.items() if number}
        if numbers:
            self._counted.append(numbers)

    def get_nowait(self) -> dict[str, float]:
        """The next mapping. Raises ``queue.Empty`` when there is none."""
        if self._counted:
            return self._counted.popleft()
        return {_trl_name(name): number for name, number in self._measured.get_nowait().items()}


def _trl_name(name: str) -> str:
    if name.startswith(_COUNT):
        return f"rollout/{name.removeprefix(_COUNT)}_total"
    return f"rollout/{name}"
