"""Check: publishing weights changes what the engine samples, and nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from longrein.doctor.adapter_sync import Adapter, AdapterSync
from longrein.doctor.check import About
from longrein.doctor.draws import probe_prompt, sampler_of
from longrein.doctor.looks import EXACT, Look, look
from longrein.doctor.result import Verdict, cannot_tell, combined, failed, passed
from longrein.engines.base import AdapterReceiver, EngineSpec, WeightReceiver
from longrein.engines.render import ChatRenderer
from longrein.types import I32

SCALE = 1.25
"""What every tensor is multiplied by: the logits of any model with a final norm or head change by as much."""

Weights = Callable[[], Mapping[str, Any]]
"""Loads the weights that the engine began with: name -> ``torch.Tensor``."""


class WeightSync:
    """Publishes other weights, then the first ones again, and compares logprobs and versions.

    Args:
        spec: the engine.
        receiver: where its weights go.
        weights: those that it began with.
        renderer: writes the prompt.
        adapter: of a run that trains adapters. An engine that takes such alone is sent one after the weights; any other
            gets merged weights in training, so that whole weights are all there is to look at.
    """

    about = About(
        name="weight_sync",
        certifies="published weights, and nothing else, change the logprobs; versions are right",
    )

    def __init__(
        self,
        spec: EngineSpec,
        receiver: WeightReceiver,
        weights: Weights,
        renderer: ChatRenderer,
        adapter: Adapter | None = None,
    ) -> None:
        self._spec = spec
        self._receiver = receiver
        self._weights = weights
        self._renderer = renderer
        self._adapter = adapter

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`. The engine has its own weights again on return."""
        prompt_ids = probe_prompt(self._renderer)
        weights = await asyncio.to_thread(self._weights)
        whole = await self._whole(weights, prompt_ids)
        if whole.status == "fail" or self._adapter is None or not isinstance(self._receiver, AdapterReceiver):
            return whole
        adapters = AdapterSync(self._spec, self._receiver, self._adapter, self.about.name)
        return combined((whole, await adapters.verdict(weights, prompt_ids)))

    async def _whole(self, weights: Mapping[str, Any], prompt_ids: I32) -> Verdict:
        async with sampler_of(self._spec, self.about.name) as sampler:
            before, again = await look(sampler, prompt_ids), await look(sampler, prompt_ids)
            version = before.max_policy_version
            try:
                await asyncio.to_thread(self._receiver.update, _scaled(weights), version + 1)
                other = await look(sampler, prompt_ids)
            finally:
                await asyncio.to_thread(self._receiver.update, weights, version + 2)
            after = await look(sampler, prompt_ids)
        if not other.is_of(version + 1):
            return _wrong(other, version + 1)
        return _judged(before.differs(again), other.differs(before), after.differs(before))


def _judged(noise: float, effect: float, rest: float) -> Verdict:
    if effect <= max(EXACT, 2.0 * noise):
        return failed(
            f"other weights were published and the logprobs stayed ({effect:.1e} nats)",
            "see whether the engine's weight transfer is switched on, and whether its cached prompts are dropped",
        )
    if rest > max(EXACT, 3.0 * noise):
        return failed(
            f"with the first weights published again, logprobs differ by {rest:.1e} nats from the first ones",
            "see whether the engine takes every tensor, and in the dtype it loaded them in",
        )
    if noise > effect / 5.0:
        return cannot_tell(
            f"equal requests differ by {noise:.1e} nats, other weights only by {effect:.1e}",
            "have the engine compute in float32, or one request at a time",
        )
    return passed(f"changed by {effect:.2f} nats and back to within {rest:.1e}; equal requests differ by {noise:.1e}")


def _wrong(other: Look, expected: int) -> Verdict:
    return failed(
        f"completions sampled with version {expected} say {other.min_policy_version} to {other.max_policy_version}",
        "the staleness bound rests on these numbers: mend the engine's bookkeeping",
    )


def _scaled(weights: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tensor * SCALE if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
