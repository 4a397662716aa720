"""The step table of a run, as Markdown: python bench/step_table.py RUN_DIR"""

from __future__ import annotations

import json
import sys
from pathlib import Path

COLUMNS = {
    "reward": ("reward", "{:.3f}"),
    "staleness mean": ("staleness_mean", "{:.2f}"),
    "max": ("staleness_max", "{:.0f}"),
    "completions over a swap": ("count/completions_over_swap", "{:.0f}"),
    "wait s": ("wait_s", "{:.1f}"),
    "train s": ("train_s", "{:.1f}"),
    "logprob gap, mean": ("logprob_gap_mean", "{:.4f}"),
}


def main() -> int:
    run_dir = Path(sys.argv[1])
    for label in ("base", "warm-start", "grpo"):
        report = json.loads((run_dir / f"eval-{label}.json").read_text(encoding="utf-8"))["reward"]
        low, high = report["low"], report["high"]
        print(f"- {label}: {report['mean']:.3f} [{low:.3f}, {high:.3f}] over {report['tasks']} held-out tasks")
    print("\n| step | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        step = json.loads(line)
        cells = [form.format(step[key]) if step.get(key) is not None else "-" for key, form in COLUMNS.values()]
        print(f"| {step['step']} | " + " | ".join(cells) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
