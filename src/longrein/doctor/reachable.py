"""Check: the engine answers, and its answers have the form that everything else relies on."""

from __future__ import annotations

import numpy as np

from longrein.doctor.check import About
from longrein.doctor.draws import probe_prompt, sampler_of
from longrein.doctor.result import Verdict, failed, passed
from longrein.engines.base import EngineSpec
from longrein.engines.render import ChatRenderer
from longrein.types import Sampling

MEND = "serve a model whose config.json is that of its weights (vocab_size)"


class Reachable:
    """Asks for one short completion."""

    about = About(name="engine", certifies="the engine answers with tokens, logprobs and policy versions")

    def __init__(self, spec: EngineSpec, renderer: ChatRenderer) -> None:
        self._spec = spec
        self._renderer = renderer

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`."""
        async with sampler_of(self._spec, self.about.name) as sampler:
            info = await sampler.engine.info()
            completion = await sampler.complete(probe_prompt(self._renderer), Sampling(max_tokens=4, seed=0))
        if not (np.isfinite(completion.logprobs).all() and (completion.logprobs <= 1e-6).all()):
            return failed(
                f"logprobs {completion.logprobs.tolist()} are no logarithms of probabilities",
                "see whether the model's weights are whole, and whether the engine reports natural logarithms",
            )
        if completion.token_ids.min() < 0 or completion.token_ids.max() >= info.vocab_size:
            return failed(f"ids {completion.token_ids.tolist()} outside its vocabulary of {info.vocab_size}", MEND)
        return passed(f"{info.model}: context {info.context_length}, vocabulary {info.vocab_size}")
