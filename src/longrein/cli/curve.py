"""The reward curve of a run, as a PNG."""

# matplotlib is partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from pathlib import Path

import msgspec

from longrein.rollout.evaluate import EvalReport


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    reward: float | None = None


def draw_curve(run_dir: Path, before: EvalReport | None, after: EvalReport | None) -> Path | None:
    """Draw ``reward_curve.png`` from ``metrics.jsonl``; ``None`` when matplotlib or the numbers are missing."""
    try:
        import matplotlib
    except ImportError:
        return None
    points = _points(run_dir / "metrics.jsonl")
    if not points:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4.0), layout="constrained")
    steps, rewards = zip(*points, strict=True)
    axes.plot(steps, rewards, marker="o", markersize=3.5, color="#1f5fa8", label="training rollouts, mean a step")
    for name, report, colour, step in (
        ("held-out, warm start", before, "#888888", 0),
        ("held-out, after GRPO", after, "#2a8a4a", steps[-1]),
    ):
        if report is None:
            continue
        interval = report.reward
        error = [[interval.mean - interval.low], [interval.high - interval.mean]]
        axes.errorbar([step], [interval.mean], yerr=error, fmt="s", capsize=4, color=colour, label=f"{name} (95 % CI)")
    axes.set(xlabel="step", ylabel="reward", ylim=(-0.03, 1.05), title="Longrein: reward")
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", fontsize=8)
    path = run_dir / "reward_curve.png"
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path


def _points(path: Path) -> list[tuple[int, float]]:
    if not path.is_file():
        return []
    found: list[tuple[int, float]] = []
    for line in path.read_bytes().splitlines():
        try:
            entry = msgspec.json.decode(line, type=_Step)
        except msgspec.DecodeError:
            # The last line of a run that was cut off.
            continue
        if entry.reward is not None:
            found.append((entry.step, entry.reward))
    return found
