"""What is measured of a step's tokens, over all micro-batches and ranks."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from longrein.train.batch import MicroBatch
from longrein.train.objective import TokenTerms
from longrein.train.score import TokenScores

MEANS = (
    "logprob_gap_mean",
    "clip_fraction",
    "clip_low_fraction",
    "clip_high_fraction",
    "truncated_fraction",
    "masked_fraction",
    "kl",
    "entropy",
)


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Logprob gaps of the tokens of one staleness."""

    tokens: int
    total: float
    largest: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Plain numbers, to be sent to other ranks and put together."""

    tokens: int
    sums: tuple[float, ...]
    """Over the tokens, by :data:`MEANS`."""
    weight: float
    """Sum of the importance weights."""
    squared_weight: float
    """Sum of their squares."""
    largest_gap: float
    gaps: dict[int, Gap]
    """By the oldest policy version of the row."""


class StepMeasures:
    """Sums over micro-batches; read out once, so that a GPU is waited for once.

    Args:
        like: a tensor of the dtype and on the device of the sums.
    """

    def __init__(self, like: Tensor) -> None:
        self._sums = like.new_zeros(len(MEANS))
        self._largest = like.new_zeros(())
        self._weights = like.new_zeros(2)
        self._gaps: dict[int, list[Tensor]] = {}
        self._gap_tokens: Counter[int] = Counter()
        self._tokens = 0

    @torch.no_grad()
    def add(self, terms: TokenTerms, scores: TokenScores, cpu_batch: MicroBatch) -> None:
        """Count the tokens of one micro-batch."""
        gaps = terms.log_ratios.abs()
        columns = (
            gaps,
            terms.clipped_low | terms.clipped_high,
            terms.clipped_low,
            terms.clipped_high,
            terms.truncated,
            terms.masked,
            terms.penalties,
            scores.entropies,
        )
        self._sums += torch.stack([column.to(self._sums.dtype).sum() for column in columns])
        self._largest = torch.maximum(self._largest, gaps.max())
        self._weights += torch.stack([terms.importance.sum(), terms.importance.square().sum()])
        self._tokens += gaps.numel()
        self._add_by_version(gaps, cpu_batch.versions)

    def take(self) -> Measured:
        """Everything so far."""
        weight, squared_weight = self._weights.tolist()
        return Measured(
            tokens=self._tokens,
            sums=tuple(self._sums.tolist()),
            weight=weight,
            squared_weight=squared_weight,
            largest_gap=self._largest.item(),
            gaps={
                version: Gap(tokens=self._gap_tokens[version], total=total.item(), largest=largest.item())
                for version, (total, largest) in self._gaps.items()
            },
        )

    def _add_by_version(self, gaps: Tensor, cpu_versions: Tensor) -> None:
        for version in cpu_versions.unique().tolist():
            # Places are found on the CPU: a mask on a GPU would have to be waited for.
            chosen = gaps.index_select(0, torch.nonzero(cpu_versions == version).flatten().to(gaps.device))
            total, largest = self._gaps.setdefault(version, [gaps.new_zeros(()), gaps.new_zeros(())])
            self._gaps[version] = [total + chosen.sum(), torch.maximum(largest, chosen.max())]
            self._gap_tokens[version] += chosen.numel()


def step_means(parts: Sequence[Measured], policy_version: int) -> dict[str, float]:
    """Means over the tokens of all ranks, the largest gap, the effective sample fraction, and the gaps by staleness.

    Args:
        parts: one a rank; some token was measured.
        policy_version: of the weights in training; staleness is counted from it.
    """
    tokens = sum(part.tokens for part in parts)
    sums = [sum(column) / tokens for column in zip(*(part.sums for part in parts), strict=True)]
    means: dict[str, float] = dict(zip(MEANS, sums, strict=True))
    means["logprob_gap_max"] = max(part.largest_gap for part in parts)
    weight, squares = sum(part.weight for part in parts), sum(part.squared_weight for part in parts)
    # Kish: (sum w)^2 / sum w^2, as a fraction of the tokens; no weight at all is no sample at all.
    means["effective_sample_fraction"] = weight**2 / (squares * tokens) if squares else 0.0
    for version in sorted({version for part in parts for version in part.gaps}):
        gaps = [part.gaps[version] for part in parts if version in part.gaps]
        name = f"logprob_gap_staleness_{policy_version - version}"
        mean = sum(gap.total for gap in gaps) / sum(gap.tokens for gap in gaps)
        means |= {f"{name}_mean": mean, f"{name}_max": max(gap.largest for gap in gaps)}
    return means
