"""One training step on the same rows, as a prefix tree, plainly, and by TRL: python bench/train_step.py [--help]

Rounds are paired: in each, every way runs once, in turn. The last line is one JSON object. The exit code is 1 where
a goal is not met.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# As the command line sets it before torch is loaded: threads that spin would be counted as work.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import numpy as np
import torch
from step_bench.cases import CASES, MODELS, warm_up_rows
from step_bench.memory import peak_mb, peak_mb_elsewhere
from step_bench.report import case_table, exit_code, goal_table, goals
from step_bench.trl import VERSION
from step_bench.ways import Setting, Way, way_of

from longrein.train.batch import SharedRow, input_count, share_step
from longrein.types import Row


class Stage:
    """A model with every way to train it, all warmed up."""

    def __init__(self, model_name: str, setting: Setting, ways: Sequence[str]) -> None:
        model = MODELS[model_name]()
        self._vocab_size = int(model.config.vocab_size)
        self.ways: dict[str, Way] = {name: way_of(name, model, setting) for name in ways}
        for way in self.ways.values():
            way.step(_shared(warm_up_rows(self._vocab_size)))

    def rows(self, case: str) -> list[SharedRow]:
        return _shared(CASES[case](np.random.default_rng(0), self._vocab_size))


def _shared(rows: Sequence[Row]) -> list[SharedRow]:
    return list(share_step(rows, "token"))


def measure(stage: Stage, rows: list[SharedRow], rounds: int) -> dict[str, Any]:
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in stage.ways}
    gradients: dict[str, torch.Tensor] = {}
    for _ in range(rounds):
        for name, way in stage.ways.items():
            seen[name].append(way.step(rows))
            gradients[name] = way.gradient()
    scale = torch.linalg.norm(gradients["plain"])
    return {
        "row_tokens": sum(input_count(item.row) for item in rows),
        "fed_tokens": {name: lines[0]["fed_tokens"] for name, lines in seen.items()},
        "cpu_s": {name: round(statistics.median(line["cpu_s"] for line in lines), 3) for name, lines in seen.items()},
        "times_tree": {
            key: {name: _ratio(lines, seen["tree"], key) for name, lines in seen.items()} for key in ("cpu_s", "wall_s")
        },
        "gradient_difference": {
            name: float(f"{float(torch.linalg.norm(gradient - gradients['plain']) / scale):.2g}")
            for name, gradient in gradients.items()
            if name != "floor"
        },
    }


def _ratio(lines: list[dict[str, float]], tree: list[dict[str, float]], key: str) -> float:
    """Median over rounds of a way's cost over the tree's."""
    return round(statistics.median(one[key] / other[key] for one, other in zip(lines, tree, strict=True)), 3)


def compare(args: argparse.Namespace, setting: Setting) -> int:
    began = time.perf_counter()
    results: dict[str, Any] = {}
    for model in args.model:
        stage = Stage(model, setting, setting.ways)
        for case in args.case:
            started = time.perf_counter()
            found = measure(stage, stage.rows(case), args.rounds)
            found["peak_mb"] = {way: peak_mb_elsewhere(_memory_options(args, model, case, way)) for way in setting.ways}
            found["seconds"] = round(time.perf_counter() - started)
            results[f"{model} {case}"] = found
            print(f"{model} {case}: {found['seconds']} s", file=sys.stderr, flush=True)
    held = goals(results)
    print(case_table(results, setting.ways), goal_table(held), sep="\n\n")
    print(
        json.dumps(
            {
                "rounds": args.rounds,
                "threads": args.threads,
                "budget": args.budget,
                "trl": VERSION if args.trl else None,
                "torch": torch.__version__,
                "load_average": os.getloadavg(),
                "seconds": round(time.perf_counter() - began),
                "cases": results,
                "goals": held,
            }
        )
    )
    return exit_code(held)


def _memory_options(args: argparse.Namespace, model: str, case: str, way: str) -> list[str]:
    peer = ["--trl", str(args.trl)] if args.trl else ["--without-trl"]
    shape = ["--threads", str(args.threads), "--budget", str(args.budget)]
    return [*peer, *shape, "--model", model, "--case", case, "--memory-of", way]


def print_peak(args: argparse.Namespace, setting: Setting) -> int:
    stage = Stage(args.model[0], setting, [args.memory_of])
    rows = stage.rows(args.case[0])
    print(peak_mb(lambda: stage.ways[args.memory_of].step(rows)))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the demo's shape on the small model, one round")
    parser.add_argument("--model", action="append", choices=list(MODELS), help="may be repeated; default: all")
    parser.add_argument("--case", action="append", choices=list(CASES), help="may be repeated; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=int, default=16384, help="micro_batch_tokens")
    parser.add_argument("--trl", type=Path, help=f"site-packages that hold trl=={VERSION}")
    parser.add_argument("--without-trl", action="store_true", help="measure without the peer")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not (args.trl or args.without_trl):
        parser.error("give --trl, or say --without-trl")
    args.model = args.model or (["5m"] if args.quick else list(MODELS))
    args.case = args.case or (["demo"] if args.quick else list(CASES))
    args.rounds = 1 if args.quick else args.rounds
    torch.set_num_threads(args.threads)
    setting = Setting(budget=args.budget, trl=args.trl)
    return print_peak(args, setting) if args.memory_of else compare(args, setting)


if __name__ == "__main__":
    sys.exit(main())
