"""Whether logprobs are those of the distribution that was sampled from: statistics of draws, no engine.

Three facts hold of any softmax, whatever the model is, and one that lies breaks at least one of them:

- a token of probability ``p`` comes ``n * p`` times in ``n`` draws (Pearson's chi-square test);
- at temperatures ``s`` and ``t`` the logprobs of two tokens differ by amounts in the ratio ``t : s``;
- the probabilities of different tokens add up to at most 1, also where some are known from another temperature only.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from longrein.doctor.draws import Draws

EXPECTED = 5.0
"""A token that should come less often is counted together with all others of its kind."""
LEAST_SPREAD = 0.02
"""Standard deviation of the common tokens' logprobs below which a ratio of their differences means nothing."""
NOISE_FACTOR = 20.0
"""And so many times the engine's own noise."""


class Frequencies(msgspec.Struct, frozen=True, kw_only=True):
    """How far counts are from what the logprobs promise."""

    tokens: int
    """Told apart; the others are one class."""
    z: float
    """Standard deviations beyond what chance explains, of a chi-square statistic (Wilson and Hilferty, 1931)."""
    mass: float
    """Sum of the probabilities reported for the different tokens that came: above 1 is impossible."""
    unseen_z: float
    """How far what is left for the others is above what draws say of it (Good, 1953), in standard deviations (Esty,
    1983)."""


def frequencies(draws: Draws) -> Frequencies:
    """Compare counts with ``exp(logprob)``."""
    counts, reported = draws.counts(), draws.reported()
    probabilities = {token: math.exp(logprob) for token, logprob in reported.items()}
    telling = [token for token in counts if draws.size * probabilities[token] >= EXPECTED]
    told = sum(probabilities[token] for token in telling)
    seen = np.array([*(counts[token] for token in telling), draws.size - sum(counts[token] for token in telling)])
    expected = draws.size * np.array([*(probabilities[token] for token in telling), max(0.0, 1.0 - told)])
    # One expected draw at least: the class of all others may be promised nothing.
    statistic = float(np.sum((seen - expected) ** 2 / np.maximum(expected, 1.0)))
    mass_seen = sum(probabilities.values())
    return Frequencies(
        tokens=len(telling),
        z=_deviations(statistic, len(telling)),
        mass=mass_seen,
        unseen_z=_unseen_deviations(list(counts.values()), draws.size, 1.0 - mass_seen),
    )


def _unseen_deviations(counts: list[int], draws: int, claimed: float) -> float:
    once, twice = counts.count(1), counts.count(2)
    # A floor, since a few rare tokens may all have stayed away.
    return (claimed * draws - once) / math.sqrt(max(once + 2 * twice, 9))


def _deviations(statistic: float, degrees: int) -> float:
    if degrees == 0:
        return 0.0
    width = 2.0 / (9.0 * degrees)
    return ((statistic / degrees) ** (1 / 3) - (1.0 - width)) / math.sqrt(width)


class Tempering(msgspec.Struct, frozen=True, kw_only=True):
    """How logprobs at one temperature follow those at another."""

    slope: float
    """Of the logprobs at the hotter over those at the colder, over tokens that came at both."""
    expected: float
    """The colder temperature over the hotter."""
    tells: bool
    """There are differences enough to have a ratio."""


def tempering(colder: Draws, hotter: Draws) -> Tempering:
    """Fit one table of logprobs to the other."""
    one, other = colder.reported(), hotter.reported()
    common = sorted(one.keys() & other.keys())
    expected = colder.temperature / hotter.temperature
    x, y = np.array([one[token] for token in common]), np.array([other[token] for token in common])
    least = max(LEAST_SPREAD, NOISE_FACTOR * max(colder.noise(), hotter.noise()))
    if len(common) < 2 or x.std() < least:
        return Tempering(slope=math.nan, expected=expected, tells=False)
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    return Tempering(slope=slope, expected=expected, tells=True)


class Mass(msgspec.Struct, frozen=True, kw_only=True):
    """Probability at one temperature of tokens that came there, and of others that came at a hotter one."""

    inside: float
    outside: float
    """Of the others, by their logprobs at the hotter temperature."""
    noise: float
    """What the engine's own differences between equal requests make of it."""

    @property
    def total(self) -> float:
        """Above 1 when tokens were cut off and what was left made to add up to 1."""
        return self.inside + self.outside

    @property
    def too_much(self) -> bool:
        """More than 1, whatever rounding explains."""
        return self.total > 1.0 + 0.003 + 2.0 * self.noise + 0.1 * self.outside


def mass(colder: Draws, hotter: Draws) -> Mass:
    """Add up the probabilities at the colder temperature. Zero outside when no token is common to both."""
    one, other = colder.reported(), hotter.reported()
    common = [token for token in one if token in other]
    outside = 0.0
    if common:
        # The likeliest common token is the measure of the others.
        anchor = max(common, key=one.__getitem__)
        ratio = hotter.temperature / colder.temperature
        logprobs = [one[anchor] + ratio * (other[token] - other[anchor]) for token in other if token not in one]
        outside = float(np.exp(np.minimum(logprobs, 1.0)).sum())
    return Mass(
        inside=sum(math.exp(logprob) for logprob in one.values()),
        outside=outside,
        noise=max(colder.noise(), hotter.noise()),
    )
