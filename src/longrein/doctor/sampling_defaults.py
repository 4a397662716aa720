"""Check: nothing is applied to the distribution that nobody asked for."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from longrein.doctor.calibration import mass
from longrein.doctor.check import About
from longrein.doctor.draws import FLAT, Draws, probe_prompt, sampler_of
from longrein.doctor.result import Verdict, cannot_tell, combined, failed, passed
from longrein.engines.base import EngineSpec
from longrein.engines.render import ChatRenderer

FLAT_DRAWS = 128
DRAWS = 256
SIGMAS = 6.0
USUAL_TOP_K = 64
"""The largest of the usual ones."""
SEEN_ENOUGH = 0.8
"""Probability that the tokens seen must have, for a cut of the tail to show."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "temperature": (None, 1, 1.0),
    "top_k": (None, 0, -1),
    "top_p": (None, 1, 1.0),
    "min_p": (None, 0, 0.0),
    "typical_p": (None, 1, 1.0),
    "repetition_penalty": (None, 1, 1.0),
    "no_repeat_ngram_size": (None, 0),
}
"""Settings of ``generation_config.json`` that change a distribution, with the values that do not."""
FIX = (
    "have the engine leave generation_config.json alone (vLLM: --generation-config vllm), and pass top_p=1, top_k=0, "
    "min_p=0 with every request"
)


class SamplingDefaults:
    """Draws at a temperature that makes all tokens alike, where a top-k shows, and at two where a cut tail shows."""

    about = About(
        name="sampling_defaults", certifies="no hidden top-k, top-p, min-p or other default of a generation_config.json"
    )

    def __init__(self, spec: EngineSpec, renderer: ChatRenderer, model_folder: str) -> None:
        self._spec = spec
        self._renderer = renderer
        self._model_folder = model_folder

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`."""
        prompt_ids = probe_prompt(self._renderer)
        async with sampler_of(self._spec, self.about.name) as sampler:
            vocab_size = (await sampler.engine.info()).vocab_size
            hottest = await sampler.hottest(prompt_ids)
            flat = await sampler.draws(prompt_ids, FLAT_DRAWS, hottest)
            top = min(2.0 * await sampler.telling_temperature(prompt_ids), hottest)
            ladder = [await sampler.draws(prompt_ids, DRAWS, top * factor) for factor in (0.25, 0.5, 1.0)]
        many = _all_tokens(flat, vocab_size) if hottest == FLAT else _many_tokens(flat)
        verdict = combined([many, _whole_tail(ladder)])
        asked = non_neutral(Path(self._model_folder) / "generation_config.json")
        if not asked:
            return verdict
        note = f"generation_config.json asks for {', '.join(f'{key}={value}' for key, value in asked.items())}"
        if "repetition_penalty" in asked or "no_repeat_ngram_size" in asked:
            note += " (whether a penalty is applied, the check 'model' sees)"
        return combined([Verdict(status=verdict.status, seen=f"{verdict.seen}; {note}", fix=verdict.fix)])


def non_neutral(path: Path) -> dict[str, Any]:
    """What a ``generation_config.json`` asks for that changes a distribution; nothing where there is no such file."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: said[key] for key, neutral in NEUTRAL.items() if key in said and said[key] not in neutral}


def _all_tokens(flat: Draws, vocab_size: int) -> Verdict:
    """At this temperature, by both what comes and what is said of it, any token of the vocabulary may come."""
    support = math.exp(-float(np.median(flat.logprobs)))
    different = len(flat.counts())
    chance = vocab_size * (1.0 - (1.0 - 1.0 / vocab_size) ** flat.size)
    repeats = flat.size - chance
    if support < vocab_size / 2:
        return failed(f"only about {support:.0f} of {vocab_size} tokens can come at temperature {FLAT:g}", FIX)
    if different < chance - SIGMAS * math.sqrt(repeats + 1.0):
        return failed(
            f"{flat.size} draws at temperature {FLAT:g} gave only {different} different tokens ({chance:.0f} expected)",
            FIX,
        )
    return passed(f"all of {vocab_size} tokens can come")


def _many_tokens(hot: Draws) -> Verdict:
    """Where no temperature that it takes makes all tokens alike: more of them come than a usual top-k leaves."""
    different = len(hot.counts())
    seen = (
        f"{hot.size} draws gave {different} different tokens at temperature {hot.temperature:g}, the hottest it takes"
    )
    if different <= USUAL_TOP_K:
        return cannot_tell(f"{seen}: too few to tell from a top-k")
    return passed(seen)


def _whole_tail(ladder: list[Draws]) -> Verdict:
    """The probabilities of what came, and of what comes at a hotter temperature, do not add up to more than 1."""
    sums = [mass(colder, hotter) for at, colder in enumerate(ladder) for hotter in ladder[at + 1 :]]
    for found in sums:
        if found.too_much:
            return failed(
                f"unlikely tokens are cut off: what is left adds up to {found.inside:.3f}, though the others should "
                f"have {found.outside:.3f}",
                FIX,
            )
    most = max(found.total for found in sums)
    if most < SEEN_ENOUGH:
        return cannot_tell(f"too wide a distribution to see its tail ({most:.2f} of it seen)")
    return passed(f"no tail is cut off ({most:.3f} of the probability seen)")
