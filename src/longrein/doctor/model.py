"""Check: the engine runs the model that is to be trained, and nothing stands between its logits and its samples."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from longrein.doctor.check import About
from longrein.doctor.draws import probe_prompt, sampler_of
from longrein.doctor.result import Verdict, cannot_tell, combined, failed, passed
from longrein.engines.base import EngineSpec
from longrein.engines.local.config import DtypeName
from longrein.engines.render import ChatRenderer
from longrein.types import Sampling

LENGTH = 24
LARGEST_BYTES = 4 << 30
"""Weights beyond this are not loaded a second time, on a CPU, for a check."""
TOLERANCES: dict[DtypeName, float] = {"float32": 1e-3, "bfloat16": 0.05}
"""Mean difference in nats that rounding explains."""


class Model:
    """Computes the logprobs of a completion with the trainer's library, from the run's own model folder."""

    about = About(name="model", certifies="the engine's logprobs are those of the model that is trained")

    def __init__(self, spec: EngineSpec, renderer: ChatRenderer, folder: str, dtype: DtypeName) -> None:
        self._spec = spec
        self._renderer = renderer
        self._folder = Path(folder)
        self._dtype: DtypeName = dtype

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`."""
        size_bytes = sum(file.stat().st_size for file in self._folder.glob("*.safetensors"))
        if size_bytes > LARGEST_BYTES:
            return cannot_tell(
                f"{size_bytes / (1 << 30):.1f} GiB of weights are not loaded again for a comparison",
                "the first step's metrics show whether engine and trainer agree",
            )
        return combined([await self._compared(temperature) for temperature in (1.0, 0.7)])

    async def _compared(self, temperature: float) -> Verdict:
        from longrein.train.folder_logprobs import folder_logprobs

        prompt_ids = probe_prompt(self._renderer)
        async with sampler_of(self._spec, f"{self.about.name}-{temperature}") as sampler:
            sampling = Sampling(max_tokens=LENGTH, temperature=temperature, seed=3)
            completion = await sampler.complete(prompt_ids, sampling)
        expected = await asyncio.to_thread(folder_logprobs, self._folder, prompt_ids, completion.token_ids, temperature)
        difference = float(np.mean(np.abs(expected - completion.logprobs)))
        told = f"{difference:.1e} nats between engine and trainer at temperature {temperature:g}"
        # Not "<=": a difference that is no number is none that rounding explains.
        if difference < TOLERANCES[self._dtype]:
            return passed(told)
        return failed(
            told,
            f"serve {self._folder} itself, without penalties or other processing of logits, and in the run's dtype "
            f"(model.dtype = {self._dtype!r})",
        )
