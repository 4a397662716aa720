"""Labels of weights, and which of them sampled which tokens (``weight_versions`` of vLLM 0.32)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

FIRST = "default"
"""What vLLM calls the weights that it started with."""


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The completion's tokens ``[start, end)`` were sampled by the weights of this label."""

    version: str
    start: int
    end: int


class VersionLabels:
    """What clients call the weights; the engine itself counts them.

    A label belongs to weights, not to a moment: tokens that were sampled before their weights got a name bear it too.
    """

    def __init__(self, first: str = FIRST) -> None:
        self._labels = [first]

    @property
    def policy_version(self) -> int:
        """Of the newest weights: how many there were before."""
        return len(self._labels) - 1

    @property
    def label(self) -> str:
        """Of the newest weights."""
        return self._labels[-1]

    def add(self) -> None:
        """New weights that nobody has named yet: the next number, or the last label with ``+1``."""
        self._labels.append(self._next())

    def rename(self, label: str) -> None:
        """Name the newest weights."""
        self._labels[-1] = label

    def spans(self, policy_versions: Sequence[int]) -> list[VersionSpan]:
        """One a run of equal versions.

        Args:
            policy_versions: one a token.
        """
        starts = [at for at, one in enumerate(policy_versions) if at == 0 or one != policy_versions[at - 1]]
        # A completion that was cut off at once has none.
        ends = [*starts, len(policy_versions)][1:]
        return [
            VersionSpan(version=self._of(policy_versions[start]), start=start, end=end)
            for start, end in zip(starts, ends, strict=True)
        ]

    def _of(self, policy_version: int) -> str:
        # The engine samples with new weights a moment before its owner hears that it took them.
        return self._labels[policy_version] if policy_version < len(self._labels) else self._next()

    def _next(self) -> str:
        last = self.label
        return str(int(last) + 1) if last.isdecimal() else f"{last}+1"
