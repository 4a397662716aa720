"""Whether each logprob of a longer completion is its own token's."""

from __future__ import annotations

import math
from statistics import median

import msgspec
import numpy as np

from longrein.doctor.draws import Sampler
from longrein.doctor.result import Verdict, cannot_tell, failed, passed
from longrein.types import F32, I32, Sampling

LENGTH = 12
DRAWS = 48
"""At each position of the completion."""
TOLERANCE = 0.1
"""Nats; rounding in bfloat16 explains a few hundredths."""
LEAST = 3
"""Telling positions, to say anything."""
ENOUGH = 6
"""Telling positions after which no more is sampled."""
TRIES = 4
UNLIKELY = 14.0
"""Nats: what has a probability below ``exp(-14)`` did not happen by chance."""


class Alignment(msgspec.Struct, frozen=True, kw_only=True):
    """Completions' logprobs beside those of their tokens drawn alone, in the same context."""

    differences: dict[int, tuple[float, ...]]
    """How far the logprobs are shifted -> differences in nats, over the telling positions: those whose token came
    again when drawn alone, and whose neighbours have other logprobs."""
    absence: float
    """Minus log of how likely it is that the other tokens never came again, by their own logprobs."""

    def apart(self, offset: int) -> float:
        """Median difference at an offset; infinite without telling positions."""
        return median(self.differences[offset]) if self.differences[offset] else math.inf

    @property
    def telling(self) -> int:
        """Positions that tell."""
        return len(self.differences[0])


async def measure(sampler: Sampler, prompt_ids: I32, temperature: float) -> Alignment:
    """Sample a completion and draw single tokens after each of its beginnings; again where that tells too little."""
    found = Alignment(differences={0: (), 1: (), -1: ()}, absence=0.0)
    for seed in range(TRIES):
        # Hotter each time: a model that is too sure of itself says nothing of alignment.
        found = _joined(found, await _one(sampler, prompt_ids, temperature * (1.0 + 0.5 * seed), seed))
        if found.telling >= ENOUGH:
            break
    return found


async def _one(sampler: Sampler, prompt_ids: I32, temperature: float, seed: int) -> Alignment:
    completion = await sampler.complete(prompt_ids, Sampling(max_tokens=LENGTH, temperature=temperature, seed=seed))
    tokens = completion.token_ids
    tables: list[dict[int, float]] = []
    for position in range(tokens.size):
        context = np.concatenate([prompt_ids, tokens[:position]])
        tables.append((await sampler.draws(context, DRAWS, temperature, first_seed=100)).reported())
    return compare(tokens, completion.logprobs, tables)


def compare(tokens: I32, logprobs: F32, tables: list[dict[int, float]]) -> Alignment:
    """The same from what was drawn: one table of token -> logprob a position."""
    alone = [table.get(int(token)) for token, table in zip(tokens, tables, strict=True)]
    changes = np.abs(np.diff(logprobs)) > 2 * TOLERANCE
    telling = [(at, own) for at, own in enumerate(alone) if own is not None and changes[max(at - 1, 0) : at + 1].any()]
    differences = {
        offset: tuple(
            abs(float(logprobs[at + offset]) - own) for at, own in telling if 0 <= at + offset < logprobs.size
        )
        for offset in (0, 1, -1)
    }
    missing = [float(logprob) for logprob, own in zip(logprobs, alone, strict=True) if own is None]
    absence = -sum(DRAWS * math.log1p(-min(math.exp(logprob), 1.0 - 1e-6)) for logprob in missing)
    return Alignment(differences=differences, absence=absence)


def _joined(one: Alignment, other: Alignment) -> Alignment:
    differences = {offset: one.differences[offset] + other.differences[offset] for offset in one.differences}
    return Alignment(differences=differences, absence=max(one.absence, other.absence))


def judged(found: Alignment) -> Verdict:
    """What it means."""
    wrong = found.telling >= LEAST and found.apart(0) > TOLERANCE
    shifts = [offset for offset in (1, -1) if found.apart(offset) < TOLERANCE]
    if wrong and shifts:
        return failed(
            f"logprobs are shifted by {shifts[0]:+d} against their tokens", "mend the engine: logprobs[i] is of token i"
        )
    if wrong or found.absence > UNLIKELY:
        return failed(
            f"in a completion of several tokens the logprobs are not what the same tokens have alone (median "
            f"difference {found.apart(0):.2f} nats over {found.telling})",
            "switch off penalties that depend on what was sampled, and give the logprob of each token itself",
        )
    if found.telling < LEAST:
        return cannot_tell("too few tokens came again to see whether logprobs and tokens are aligned")
    return passed(f"aligned (median difference {found.apart(0):.1e} nats over {found.telling} tokens)")
