"""What came of it: one table of the cases, one of the goals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Cases = dict[str, dict[str, Any]]
"""``model case`` -> what was measured of each way."""


def _times_tree(way: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda case: case["times_tree"]["cpu_s"].get(way)


GOALS: dict[str, tuple[str, Callable[[dict[str, Any]], float | None], float]] = {
    "TRL's untied step over ours": ("8k", _times_tree("trl untied"), 2.0),
    "TRL's trie over ours": ("8k", _times_tree("trl trie"), 1.0),
    "floor over ours (within 15 %)": ("8k", _times_tree("floor"), round(1 / 1.15, 2)),
    "TRL's untied step over ours, nothing shared": ("unshared", _times_tree("trl untied"), 1.0),
    "our plain rows over ours, nothing shared": ("unshared", _times_tree("plain"), 1.0),
}
"""Name -> case, what is measured (CPU time, median of the rounds' ratios), and the least that it may be."""


def goals(cases: Cases) -> dict[str, dict[str, Any]]:
    """Each goal for each model whose case was measured with the peer that it is about."""
    held: dict[str, dict[str, Any]] = {}
    for cell, measured in cases.items():
        model, case = cell.split()
        for name, (of_case, ratio, least) in GOALS.items():
            value = ratio(measured) if case == of_case else None
            if value is not None:
                rounded = round(value, 2)
                held[f"{model} {case}: {name}"] = {"measured": rounded, "goal": least, "holds": rounded >= least}
    return held


def exit_code(held: dict[str, dict[str, Any]]) -> int:
    """1 where a goal is not met. What was not measured, such as a peer left out by name, is no goal here."""
    return 0 if all(goal["holds"] for goal in held.values()) else 1


def case_table(cases: Cases, ways: tuple[str, ...]) -> str:
    others = [way for way in ways if way != "tree"]
    lines = [
        f"| model and rows | row tokens | fed by the tree | tree, CPU s | {' | '.join(others)} |",
        "|---" * (4 + len(others)) + "|",
    ]
    for cell, case in cases.items():
        ratios = [f"{case['times_tree']['cpu_s'][way]:.2f}x" for way in others]
        own = f"{case['row_tokens']} | {case['fed_tokens']['tree']} | {case['cpu_s']['tree']:.2f}"
        lines.append(f"| {cell} | {own} | {' | '.join(ratios)} |")
    lines += ["", f"| peak memory of the step, MB | {' | '.join(ways)} |", "|---" * (1 + len(ways)) + "|"]
    for cell, case in cases.items():
        lines.append(f"| {cell} | {' | '.join(str(round(case['peak_mb'][way])) for way in ways)} |")
    return "\n".join(lines)


def goal_table(held: dict[str, dict[str, Any]]) -> str:
    lines = ["| goal | measured | at least | holds |", "|---|---|---|---|"]
    for name, goal in held.items():
        lines.append(
            f"| {name} | {goal['measured']:.2f} | {goal['goal']:.2f} | {'yes' if goal['holds'] else '**no**'} |"
        )
    return "\n".join(lines)
