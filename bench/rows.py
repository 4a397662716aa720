"""Trace -> training rows, beside TRL's function for it: python bench/rows.py [--help]

Rounds are paired: in each, every way turns the same conversation into rows. The last line is one JSON object.
The exit code is 1 where our budget does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from longrein.rows import rows_from_rollout
from longrein.types import Call, Completion, Rollout, Score, Timing, Trace

VERSION = "1.16.0"
TURNS = 200
FIRST_PROMPT = 10_300
"""Tokens of the system prompt, the tools and the task."""
TOOL_OUTPUT = 300
SAMPLED = 200
BUDGET_MS = 1.0


def conversation(*, forks: int) -> Rollout:
    """200 turns of 110k tokens in all, as the gateway hands them over: parents known.

    Args:
        forks: so many times, evenly spread, the agent throws its last two turns away and goes on from before.
    """
    random = np.random.default_rng(0)
    forking = set(np.linspace(3, TURNS - 1, forks).astype(int).tolist())
    calls: list[Call] = []
    for number in range(TURNS):
        parent = None if number == 0 else calls[-1].call_id
        if number in forking:
            parent = calls[number - 3].call_id
        calls.append(_call(number, parent, FIRST_PROMPT if parent is None else TOOL_OUTPUT, random))
    return Rollout(
        rollout_id="r",
        group_id="g",
        task_id="t",
        seed=0,
        status="completed",
        trace=Trace(session_id="s", calls=tuple(calls)),
        score=Score(reward=1.0),
    )


def _call(number: int, parent: int | None, new_tokens: int, random: np.random.Generator) -> Call:
    return Call(
        call_id=number,
        parent_id=parent,
        prompt_delta=random.integers(0, 150_000, new_tokens).astype(np.int32),
        completion=Completion(
            token_ids=random.integers(0, 150_000, SAMPLED).astype(np.int32),
            logprobs=-random.random(SAMPLED).astype(np.float32),
            finish_reason="stop",
            min_policy_version=number // 50,
            max_policy_version=number // 50,
        ),
        delivered=True,
        messages=(),
        reply={"role": "assistant", "content": ""},
        timing=Timing(started_at_s=0.0),
    )


def without_parents(rollout: Rollout) -> Rollout:
    """The same from an engine that renders prompts itself: every call has its whole prompt and no parent."""
    calls = tuple(
        msgspec.structs.replace(call, parent_id=None, prompt_delta=rollout.trace.prompt_ids(call))
        for call in rollout.trace.calls
    )
    return msgspec.structs.replace(rollout, trace=msgspec.structs.replace(rollout.trace, calls=calls))


def ours(rollout: Rollout) -> list[tuple[Any, Any, Any]]:
    """Ids, mask and logprobs of each row."""
    rows = rows_from_rollout(rollout, advantage=1.0).rows
    return [(row.token_ids, row.loss_mask, row.logprobs) for row in rows]


class TrlRows:
    """TRL's ``_chain_to_sequences`` on whole prompts in lists, the only form it takes.

    Args:
        site_packages: where TRL is installed (``--no-deps`` is enough).
    """

    def __init__(self, site_packages: Path) -> None:
        os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
        sys.path.append(str(site_packages))
        import trl
        from trl.experimental.async_grpo import async_rollout_worker

        if trl.__version__ != VERSION:
            raise SystemExit(f"TRL {trl.__version__} is not the peer; install trl=={VERSION} in {site_packages}")
        self._worker = async_rollout_worker

    def turns(self, rollout: Rollout) -> list[Any]:
        """The conversation in its form; not measured."""
        return [
            self._worker.TurnRecord(
                rollout.trace.prompt_ids(call).tolist(),
                call.completion.token_ids.tolist(),
                call.completion.logprobs.tolist(),
            )
            for call in rollout.trace.calls
        ]

    def lists(self, turns: list[Any]) -> list[Any]:
        """Its function alone: rows as lists."""
        return self._worker._chain_to_sequences(turns, "r", 0)[0]

    def arrays(self, turns: list[Any]) -> list[tuple[Any, Any, Any]]:
        """What its trainer is handed: the same in arrays, as its ``_score_group`` makes them."""
        return [
            (
                np.asarray(row.input_ids, dtype=np.int64),
                np.asarray(row.completion_mask, dtype=np.int64),
                np.asarray(row.old_log_probs, dtype=np.float32),
            )
            for row in self.lists(turns)
        ]


def measure(rollout: Rollout, peer: TrlRows | None, rounds: int) -> dict[str, Any]:
    """CPU milliseconds of each way, medians over rounds, and the medians of the rounds' ratios to ours."""
    ways: dict[str, Callable[[], list[Any]]] = {"longrein": partial(ours, rollout)}
    if peer:
        turns = peer.turns(rollout)
        ways |= {"trl": partial(peer.lists, turns), "trl as arrays": partial(peer.arrays, turns)}
    rows = {way: make() for way, make in ways.items()}
    if peer:
        _check_equal(rows["longrein"], rows["trl as arrays"])
    seen: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, make in ways.items():
            started = time.thread_time()
            make()
            seen[way].append(1000 * (time.thread_time() - started))
    return {
        "tokens": sum(call.prompt_delta.size + call.completion.token_ids.size for call in rollout.trace.calls),
        "rows": len(rows["longrein"]),
        "row_tokens": sum(ids.size for ids, _, _ in rows["longrein"]),
        "cpu_ms": {way: round(statistics.median(times), 3) for way, times in seen.items()},
        "times_longrein": {
            way: round(statistics.median(a / b for a, b in zip(times, seen["longrein"], strict=True)), 1)
            for way, times in seen.items()
        },
    }


def _check_equal(mine: list[Any], theirs: list[Any]) -> None:
    """Both must train every sampled token, once."""
    trained = [np.concatenate([ids[mask.astype(bool)] for ids, mask, _ in rows]) for rows in (mine, theirs)]
    if not np.array_equal(np.sort(trained[0]), np.sort(trained[1])):
        raise SystemExit("the ways do not train the same tokens")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--trl", type=Path, help=f"site-packages that hold trl=={VERSION}")
    parser.add_argument("--without-trl", action="store_true", help="measure without the peer")
    args = parser.parse_args()
    if not (args.trl or args.without_trl):
        parser.error("give --trl, or say --without-trl")
    peer = TrlRows(args.trl) if args.trl else None
    plain, forking = conversation(forks=0), conversation(forks=50)
    results = {
        name: measure(rollout, peer, args.rounds)
        for name, rollout in {
            "one conversation": plain,
            "50 forks": forking,
            "one conversation, parents unknown": without_parents(plain),
        }.items()
    }
    print("| 200 turns, 110k tokens | " + " | ".join(f"{way}, CPU ms" for way in results["50 forks"]["cpu_ms"]) + " |")
    print("|---" * (1 + len(results["50 forks"]["cpu_ms"])) + "|")
    for name, result in results.items():
        cells = [f"{ms:.2f} ({result['times_longrein'][way]}x)" for way, ms in result["cpu_ms"].items()]
        print(f"| {name} ({result['rows']} rows) | " + " | ".join(cells) + " |")
    holds = results["one conversation"]["cpu_ms"]["longrein"] <= BUDGET_MS
    print(f"\nbudget of {BUDGET_MS} ms for one conversation: {'holds' if holds else 'DOES NOT HOLD'}")
    print(json.dumps({"rounds": args.rounds, "trl": str(args.trl), "budget_ms": BUDGET_MS, "cases": results}))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
