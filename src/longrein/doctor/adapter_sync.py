"""Whether an adapter alone changes what the engine samples, as the trainer means it: of runs that train LoRA."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from longrein.doctor.draws import sampler_of
from longrein.doctor.looks import EXACT, Look, look
from longrein.doctor.result import Verdict, cannot_tell, failed, passed
from longrein.engines.base import AdapterReceiver, EngineSpec
from longrein.types import I32

if TYPE_CHECKING:
    from longrein.train.adapter_probe import AdapterProbe

Adapter = Callable[[Mapping[str, Any]], "AdapterProbe"]
"""The weights that the engine began with -> an adapter of the run's form."""
OF_THE_EFFECT = 0.2
"""Engines compute an adapter beside the weights or in them, and round differently; by less than this."""


class AdapterSync:
    """Publishes an adapter, the weights with it merged, then the first weights again.

    Args:
        spec: connected to anew for each look, since a client asks for the adapter if it was there when it connected.
        receiver: the engine's end.
        adapter: makes the adapter.
        label: begins the names of the conversations.
    """

    def __init__(self, spec: EngineSpec, receiver: AdapterReceiver, adapter: Adapter, label: str) -> None:
        self._spec = spec
        self._receiver = receiver
        self._adapter = adapter
        self._label = label

    async def verdict(self, weights: Mapping[str, Any], prompt_ids: I32) -> Verdict:
        """The engine has its own weights again on return."""
        probe = await asyncio.to_thread(self._adapter, weights)
        before, again = await self._look(prompt_ids), await self._look(prompt_ids)
        version = before.max_policy_version
        try:
            await asyncio.to_thread(self._receiver.update_adapter, probe.tensors, probe.spec, version + 1)
            adapted = await self._look(prompt_ids)
            await asyncio.to_thread(self._receiver.update, probe.merged, version + 2)
            merged = await self._look(prompt_ids)
        finally:
            await asyncio.to_thread(self._receiver.update, weights, version + 3)
        after = await self._look(prompt_ids)
        if not adapted.is_of(version + 1):
            return failed(
                f"completions sampled with the adapter of version {version + 1} say {adapted.min_policy_version} to "
                f"{adapted.max_policy_version}",
                "the staleness bound rests on these numbers: mend the engine's bookkeeping",
            )
        return _judged(before.differs(again), adapted.differs(before), adapted.differs(merged), after.differs(before))

    async def _look(self, prompt_ids: I32) -> Look:
        async with sampler_of(self._spec, self._label) as sampler:
            return await look(sampler, prompt_ids)


def _judged(noise: float, effect: float, apart: float, rest: float) -> Verdict:
    if effect <= max(EXACT, 2.0 * noise):
        return failed(
            f"an adapter was published and the logprobs stayed ({effect:.1e} nats)",
            "see whether the engine samples with the adapter in training, and whether its cached prompts are dropped",
        )
    if noise > effect / 5.0:
        return cannot_tell(
            f"equal requests differ by {noise:.1e} nats, an adapter only by {effect:.1e}",
            "have the engine compute in float32, or one request at a time",
        )
    if apart > max(EXACT, 3.0 * noise, OF_THE_EFFECT * effect):
        return failed(
            f"with an adapter logprobs differ by {apart:.1e} nats from those of the same weights merged",
            "see whether the engine adapts every target module, and with the run's alpha / rank",
        )
    if rest > max(EXACT, 3.0 * noise):
        return failed(
            f"with the adapter taken away again, logprobs differ by {rest:.1e} nats from the first ones",
            "see whether the engine still samples with the adapter, or adds it to its weights for good",
        )
    return passed(f"an adapter changed them by {effect:.2f} nats, as merged weights do to within {apart:.1e}")
