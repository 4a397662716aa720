"""Check: completions end where they are told to."""

from __future__ import annotations

from longrein.doctor.check import About
from longrein.doctor.draws import Sampler, probe_prompt, sampler_of
from longrein.doctor.result import Verdict, cannot_tell, combined, failed, passed
from longrein.engines.base import EngineSpec
from longrein.engines.render import ChatRenderer
from longrein.types import I32, Sampling

LENGTH = 8


class Stops:
    """Asks for a number of tokens, then for a stop at one of them."""

    about = About(
        name="stops", certifies="max_tokens and stop ids are honoured, and the stop token is part of the completion"
    )

    def __init__(self, spec: EngineSpec, renderer: ChatRenderer) -> None:
        self._spec = spec
        self._renderer = renderer

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`."""
        prompt_ids = probe_prompt(self._renderer)
        if not self._renderer.stop_token_ids:
            return failed(
                "the chat template has no token that ends an assistant turn",
                "give the tokenizer an eos_token, or the run a template that ends turns with one (model.chat_template)",
            )
        async with sampler_of(self._spec, self.about.name) as sampler:
            vocab_size = (await sampler.engine.info()).vocab_size
            outside = [token for token in self._renderer.stop_token_ids if token >= vocab_size]
            if outside:
                return failed(
                    f"stop ids {outside} are outside the engine's vocabulary of {vocab_size}",
                    "give the engine and the run file (model.path) the same model folder",
                )
            return combined([await _lengths(sampler, prompt_ids), await _stops(sampler, prompt_ids)])


async def _lengths(sampler: Sampler, prompt_ids: I32) -> Verdict:
    for wanted in (1, LENGTH):
        completion = await sampler.complete(prompt_ids, Sampling(max_tokens=wanted, seed=1))
        size, reason = completion.token_ids.size, completion.finish_reason
        if size > wanted or (size < wanted and reason != "stop"):
            return failed(f"max_tokens={wanted} gave {size} tokens, finish_reason {reason!r}", "mend the engine")
        if size == wanted and reason == "stop" and wanted == 1:
            return cannot_tell("the model ends its turn at once here")
    return passed("max_tokens is honoured")


async def _stops(sampler: Sampler, prompt_ids: I32) -> Verdict:
    """The same seed gives the same tokens; one of them in the middle is then a stop id."""
    free = (await sampler.complete(prompt_ids, Sampling(max_tokens=LENGTH, seed=2))).token_ids
    stop = int(free[free.size // 2])
    asked = Sampling(max_tokens=4 * LENGTH, seed=2, stop_token_ids=(stop,))
    stopped = await sampler.complete(prompt_ids, asked)
    places = [at for at, token in enumerate(stopped.token_ids.tolist()) if token == stop]
    if not places:
        if stopped.finish_reason == "stop":
            return failed(
                "a stop token that was sampled is missing from the completion",
                "have the engine return it (vLLM: include it in token_ids), or its logprob never trains",
            )
        return cannot_tell("the same seed gave other tokens, none of them the stop id")
    if places[0] != stopped.token_ids.size - 1 or stopped.finish_reason != "stop":
        return failed(
            f"sampling went on {stopped.token_ids.size - 1 - places[0]} tokens after a stop id "
            f"(finish_reason {stopped.finish_reason!r})",
            "mend the engine: stop_token_ids end a completion",
        )
    return passed(f"it stops at a stop id, kept as token {places[0] + 1}")
