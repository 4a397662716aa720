"""What the design asks of the engine, and whether it was reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

OURS = "longrein"
VLLM = "vllm"
VLLM_UNCACHED = "vllm-uncached"
_WITHOUT_PREFIX_CACHE = ("generate", "generate-batch", VLLM_UNCACHED)
_MOST_START_S = 10.0


def judge(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One entry a goal: its name, what was measured (nothing if it was not), what was wanted, ``pass``, ``fail`` or
    ``not measured``."""
    return [goal for name, result in results.items() for goal in _of_one(name, result)]


def _of_one(name: str, result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    start_s = result.get("start_to_first_token_s", {}).get(OURS)
    yield _goal(f"{name}: seconds from start to first token", start_s, f"<= {_MOST_START_S:g}", start_s, _MOST_START_S)
    arrives = result.get("publish", {}).get("arrives_over_memcpy")
    yield _goal(f"{name}: publication of weights over a plain copy", arrives, ">= 0.5", 0.5, arrives)
    for context in ("150", "4k"):
        for concurrent in (1, 8, 16):
            least = _least(name, concurrent)
            times = _times(result, f"{context} x{concurrent}").get(VLLM)
            yield _goal(f"{name}-{context} x{concurrent}: vLLM's rate", times, f">= {least}", least, times)
    turns = {peer: times for peer, times in _times(result, "turns").items() if peer in _WITHOUT_PREFIX_CACHE}
    # The best peer is the one that ours is the fewest times as fast as.
    worst = min(turns.values(), default=None)
    yield _goal(f"{name}-turns: best rate without a prefix cache", worst, ">= 2", 2.0, worst)


def _least(name: str, concurrent: int) -> float:
    if concurrent == 1:
        return 1.2
    if name.startswith("5m"):
        return 2.0
    return 1.0 if name.endswith("bf16") else 0.9


def _times(result: Mapping[str, Any], case: str) -> Mapping[str, float]:
    return result.get("cases", {}).get(case, {}).get("times_peer", {}).get("tokens_per_s", {})


def _goal(name: str, measured: float | None, wanted: str, low: float | None, high: float | None) -> dict[str, Any]:
    verdict = "not measured"
    if low is not None and high is not None:
        verdict = "pass" if low <= high else "fail"
    return {"goal": name, "measured": measured, "wanted": wanted, "verdict": verdict}
