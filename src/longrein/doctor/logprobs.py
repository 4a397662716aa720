"""Check: logprobs are of the distribution that was sampled from, and each is its own token's."""

from __future__ import annotations

from longrein.doctor import alignment
from longrein.doctor.calibration import Frequencies, frequencies, tempering
from longrein.doctor.check import About
from longrein.doctor.draws import Draws, Sampler, probe_prompt, sampler_of
from longrein.doctor.result import Verdict, cannot_tell, combined, failed, passed
from longrein.engines.base import EngineSpec
from longrein.engines.render import ChatRenderer
from longrein.types import I32

DRAWS = 256
"""At each temperature. A probability of 0.1 is then measured to within 0.02."""
TOO_FAR = 5.0
"""Standard deviations: once in three million honest engines."""
SLOPE_TOLERANCE = 0.1
"""Of the ratio of temperatures."""
NOISE = 0.3
"""Nats by which one token's logprob may differ between equal requests."""


class Logprobs:
    """Counts what is sampled at three temperatures, and samples the beginnings of a completion again."""

    about = About(
        name="logprobs",
        certifies="logprobs are of the distribution sampled from, aligned with the tokens",
    )

    def __init__(self, spec: EngineSpec, renderer: ChatRenderer, temperature: float) -> None:
        self._spec = spec
        self._renderer = renderer
        self._temperature = temperature

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`."""
        prompt_ids = probe_prompt(self._renderer)
        async with sampler_of(self._spec, self.about.name) as sampler:
            telling = await sampler.telling_temperature(prompt_ids)
            draws = await self._draws(sampler, prompt_ids, telling)
            aligned = await alignment.measure(sampler, prompt_ids, telling)
        return combined([_repeats(draws), _tempered(draws), _counted(draws), alignment.judged(aligned)])

    async def _draws(self, sampler: Sampler, prompt_ids: I32, telling: float) -> list[Draws]:
        """Coldest first."""
        temperatures = sorted({1.0, telling, 2 * telling, self._temperature})
        return [await sampler.draws(prompt_ids, DRAWS, temperature) for temperature in temperatures]


def _repeats(draws: list[Draws]) -> Verdict:
    noise = max(each.noise() for each in draws)
    if noise > NOISE:
        return failed(
            f"one token in one context has logprobs up to {noise:.2f} nats apart",
            "the engine computes the same request differently each time: see its batching, dtype and quantisation",
        )
    return passed(f"repeated to {noise:.0e} nats")


def _counted(draws: list[Draws]) -> Verdict:
    found = {each.temperature: frequencies(each) for each in draws}
    wrong = {temperature: each for temperature, each in found.items() if _impossible(each)}
    if wrong:
        told = ", ".join(
            f"{temperature:g} ({max(each.z, each.unseen_z):.0f} sigma)" for temperature, each in wrong.items()
        )
        return failed(
            f"tokens do not come as often as their logprobs say, at temperature {told}",
            "report logprobs after temperature and truncation (vLLM: --logprobs-mode processed_logprobs)",
        )
    if max(each.tokens for each in found.values()) < 2:
        return cannot_tell("at no temperature are a few tokens likely enough to be counted")
    return passed(f"frequencies of {DRAWS} draws fit at temperatures {', '.join(f'{t:g}' for t in found)}")


def _impossible(found: Frequencies) -> bool:
    return _deviations(found) > TOO_FAR or found.mass > 1.1


def _deviations(found: Frequencies) -> float:
    return max(found.z, found.unseen_z)


def _tempered(draws: list[Draws]) -> Verdict:
    pairs = [tempering(colder, hotter) for at, colder in enumerate(draws) for hotter in draws[at + 1 :]]
    telling = [pair for pair in pairs if pair.tells]
    for pair in telling:
        if abs(pair.slope / pair.expected - 1.0) > SLOPE_TOLERANCE:
            flat = abs(pair.slope - 1.0) < SLOPE_TOLERANCE
            what = "do not change with the temperature" if flat else "change otherwise than the temperature asks"
            return failed(
                f"logprobs {what} (ratio {pair.slope:.2f}, should be {pair.expected:.2f})",
                "report logprobs after temperature (vLLM: --logprobs-mode processed_logprobs), and see that no other "
                "temperature is applied",
            )
    if not telling:
        return cannot_tell("no temperatures with enough common tokens to compare")
    return passed(f"logprobs follow the temperature ({len(telling)} pairs)")
