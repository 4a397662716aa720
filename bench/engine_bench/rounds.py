"""One case, all contenders, some rounds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from engine_bench.cases import Case, Measured
from engine_bench.contenders import Contender
from engine_bench.goals import OURS

_FIGURES = ("tokens_per_s", "tokens_per_cpu_s")


def compare(case: Case, contenders: Mapping[str, Contender], rounds: int) -> dict[str, Any]:
    """Medians over the rounds, and of the rounds' ratios of ours to each peer's."""
    seen: dict[str, list[Measured]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, contender in contenders.items():
            seen[name].append(case.measure(contender, number))
    return {
        **{figure: {name: _median(all_, figure) for name, all_ in seen.items()} for figure in _FIGURES},
        "times_peer": {
            figure: {name: _ratio(seen[OURS], all_, figure) for name, all_ in seen.items() if name != OURS}
            for figure in _FIGURES
        },
    }


def _median(rounds: Sequence[Measured], figure: str) -> int:
    return round(statistics.median(getattr(one, figure) for one in rounds))


def _ratio(ours: Sequence[Measured], theirs: Sequence[Measured], figure: str) -> float:
    ratios = [getattr(one, figure) / getattr(other, figure) for one, other in zip(ours, theirs, strict=True)]
    return round(statistics.median(ratios), 2)
