"""What of a model in training is sent to an engine: all of it, its adapters, or all of it with adapters merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor, nn

from longrein.engines.base import AdapterReceiver, WeightReceiver
from longrein.train.adapter_weights import adapter_update, base_weights, merged_weights
from longrein.train.adapters import is_adapted
from longrein.train.weights import bare_model, named_weights

Current = Callable[[], nn.Module]
"""Gives the model in training, however it is wrapped by then."""
WeightsOf = Callable[[nn.Module], Mapping[str, Tensor]]


class Publication(Protocol):
    """Sends the present weights. Raises :class:`~longrein.errors.EngineError` where the engine refuses them."""

    def begin(self, version: int) -> None:
        """Before the first rollout: see that the engine samples with the weights that training goes on from."""
        ...

    def send(self, version: int) -> None:
        """After a step."""
        ...


class WholeWeights:
    """Every tensor, under the names of the model without adapters.

    Args:
        receiver: the engine's end.
        model: what trains.
        weights_of: ``named_weights``, or ``merged_weights`` of a model with adapters that the engine knows nothing of.
    """

    def __init__(self, receiver: WeightReceiver, model: Current, weights_of: WeightsOf) -> None:
        self._receiver = receiver
        self._model = model
        self._weights_of = weights_of

    def begin(self, version: int) -> None:
        """Always, whatever the engine was started from: weights of another model are refused before any rollout."""
        self.send(version)

    def send(self, version: int) -> None:
        """See :class:`Publication`."""
        self._receiver.update(self._weights_of(self._model()), version)


class AdaptersOnly:
    """For an engine that adds adapters to a base of its own."""

    def __init__(self, receiver: AdapterReceiver, model: Current) -> None:
        self._receiver = receiver
        self._model = model

    def begin(self, version: int) -> None:
        """The base is sent once, whatever the engine was started from, and never again."""
        self._receiver.update(base_weights(self._model()), version)
        self.send(version)

    def send(self, version: int) -> None:
        """See :class:`Publication`."""
        adapter = adapter_update(self._model())
        self._receiver.update_adapter(adapter.tensors, adapter.spec, version)


def publication_for(receiver: WeightReceiver, model: Current) -> Publication:
    """Adapters alone to an engine that takes them, whole weights to any other."""
    if not is_adapted(bare_model(model())):
        return WholeWeights(receiver, model, named_weights)
    if isinstance(receiver, AdapterReceiver):
        return AdaptersOnly(receiver, model)
    return WholeWeights(receiver, model, merged_weights)
