"""The loss by which routers of a mixture of experts spread tokens evenly (Switch, arXiv 2101.03961, eq. 4 to 6).

For some tokens it is ``experts * sum_e f_e * P_e``: ``f_e`` the choices that fell on expert ``e``, a token, ``P_e`` the
mean of its probability, both over layers and tokens. A step's is the mean over its micro-batches, each weighed by the
unique tokens that are fed there first, and only these are looked at: neither padding nor a beginning that is fed again
counts. A product of means depends on what stands in a micro-batch, so this loss, and no other, does so slightly too.
"""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, cast

import msgspec
import torch
from torch import Tensor, nn

from longrein.errors import ConfigError
from longrein.train.batch import MicroBatch
from longrein.train.layouts import library_model, wants_router_loss


class RouterReadings(msgspec.Struct, kw_only=True):
    """What routers said in one forward pass."""

    logits: tuple[Tensor, ...] = ()
    """One ``[b * t, experts]`` a layer."""


class RouterLoss(Protocol):
    """A part of the step's loss that is about routers."""

    @property
    def coefficient(self) -> float:
        """Multiplies :meth:`of` in the step's loss."""
        ...

    def watching(self, model: nn.Module) -> AbstractContextManager[RouterReadings]:
        """While it lasts, readings are taken of the one forward pass of ``model``."""
        ...

    def of(self, readings: RouterReadings, batch: MicroBatch) -> Tensor:
        """Scalar: the part of one micro-batch."""
        ...

    def logged(self, total: float) -> Mapping[str, float]:
        """What the log says of a step's sum of :meth:`of`."""
        ...


class NoRouterLoss(msgspec.Struct, frozen=True, kw_only=True):
    """For models without routers, and those whose configuration does not ask for it."""

    coefficient: float = 0.0

    def watching(self, model: nn.Module) -> AbstractContextManager[RouterReadings]:
        """See :class:`RouterLoss`."""
        return nullcontext(RouterReadings())

    def of(self, readings: RouterReadings, batch: MicroBatch) -> Tensor:
        """0."""
        return batch.shares.new_zeros(())

    def logged(self, total: float) -> Mapping[str, float]:
        """Nothing."""
        return {}


class LoadBalancing(msgspec.Struct, frozen=True, kw_only=True):
    """The loss of this module."""

    coefficient: float
    experts_per_token: int

    @contextmanager
    def watching(self, model: nn.Module) -> Generator[RouterReadings, None, None]:
        """See :class:`RouterLoss`."""
        readings = RouterReadings()

        def ask(_base: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
            return args, {**options, "output_router_logits": True}

        def read(_base: nn.Module, _args: object, output: Any) -> None:
            readings.logits = tuple(output.router_logits)

        base = cast(Any, library_model(model)).base_model
        with base.register_forward_pre_hook(ask, with_kwargs=True), base.register_forward_hook(read):
            yield readings

    def of(self, readings: RouterReadings, batch: MicroBatch) -> Tensor:
        """See :class:`RouterLoss`. An idle pass has no tokens that count.

        Raises:
            ConfigError: the model's layers gave no router logits.
        """
        total = batch.router_share
        if not total:
            return batch.shares.new_zeros(())
        if not readings.logits:
            raise ConfigError("the model gives no router logits; set output_router_logits = false in its config")
        weights = (batch.router_shares / (total * len(readings.logits))).unsqueeze(-1)
        chosen = mean = torch.zeros((), dtype=weights.dtype, device=weights.device)
        for logits in readings.logits:
            probs = torch.softmax(logits.to(weights.dtype), dim=-1)
            places = probs.detach().topk(self.experts_per_token, dim=-1).indices
            chosen = chosen + (torch.zeros_like(probs).scatter(-1, places, 1.0) * weights).sum(0)
            mean = mean + (probs * weights).sum(0)
        return total * (chosen * mean).sum() * chosen.numel()

    def logged(self, total: float) -> Mapping[str, float]:
        """Before the coefficient: as many as experts a token, where routers are perfectly even."""
        return {"router_loss": total}


NO_ROUTER_LOSS = NoRouterLoss()


def router_loss_for(model: nn.Module) -> RouterLoss:
    """What the model's configuration asks for: ``output_router_logits``, and ``router_aux_loss_coef`` above 0.

    Raises:
        ConfigError: it asks, and does not say how many experts a token has.
    """
    if not wants_router_loss(model):
        return NO_ROUTER_LOSS
    config = cast(Any, library_model(model)).config.get_text_config()
    experts = getattr(config, "num_experts_per_tok", None)
    if experts is None:
        raise ConfigError(
            "the model asks for a router loss (output_router_logits), but its config has no num_experts_per_tok; set "
            "output_router_logits = false"
        )
    return LoadBalancing(coefficient=float(config.router_aux_loss_coef), experts_per_token=int(experts))
