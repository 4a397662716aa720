"""Results as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_bench.goals import OURS


def table(name: str, result: Mapping[str, Any]) -> str:
    """One model and dtype: a row a case, tokens a second / a CPU second and, of peers, how often ours is as fast."""
    lines = [
        f"{name}: at most {result['bound_tokens_per_s_x1']} tokens a second for one request by the memory's bandwidth"
    ]
    if "publish" in result:
        lines.append(f"publication of weights: {result['publish']}")
    cases = result.get("cases", {})
    peers = list(dict.fromkeys(peer for case in cases.values() for peer in case["tokens_per_s"]))
    if cases:
        lines += ["", f"| {name} | {' | '.join(peers)} |", "|---" * (len(peers) + 1) + "|"]
    for case, measured in cases.items():
        cells = [_cell(measured, peer) if peer in measured["tokens_per_s"] else "" for peer in peers]
        lines.append(f"| {case}{_of_bound(case, measured, result)} | {' | '.join(cells)} |")
    if cases:
        firsts = [str(result["start_to_first_token_s"].get(peer, "")) for peer in peers]
        lines.append(f"| start to first token, s | {' | '.join(firsts)} |")
    return "\n".join(lines)


def _cell(measured: Mapping[str, Any], name: str) -> str:
    rates = f"{measured['tokens_per_s'][name]} / {measured['tokens_per_cpu_s'][name]}"
    if name == OURS:
        return f"**{rates}**"
    return f"{rates} ({measured['times_peer']['tokens_per_s'][name]}x)"


def _of_bound(case: str, measured: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    if not case.endswith(" x1"):
        return ""
    return f" ({measured['tokens_per_s'][OURS] / result['bound_tokens_per_s_x1']:.0%} of the bound)"
