"""A row longer than the token budget is fed alone, and its activations are computed again in place of being kept."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from transformers import PreTrainedModel

from longrein.errors import BatchError
from longrein.train.batch import MicroBatch, input_count
from longrein.types import Row


class OversizedRows:
    """Switches a model's activation checkpointing on for the passes that need it.

    Args:
        model: as it trains, unwrapped.
        micro_batch_tokens: the budget.
    """

    def __init__(self, model: PreTrainedModel, micro_batch_tokens: int) -> None:
        self._model = cast(Any, model)
        self._micro_batch_tokens = micro_batch_tokens

    def check(self, rows: Sequence[Row]) -> None:
        """See that rows over the budget can be trained.

        Raises:
            BatchError: a model that cannot checkpoint, and a row over the budget.
        """
        if self._model.supports_gradient_checkpointing:
            return
        for row in rows:
            if input_count(row) > self._micro_batch_tokens:
                raise BatchError(
                    f"rollout {row.rollout_id} (group {row.group_id}): a row of {input_count(row)} tokens is over "
                    f"micro_batch_tokens={self._micro_batch_tokens}, and {type(self._model).__name__} has no "
                    "activation checkpointing to train it with; raise micro_batch_tokens"
                )

    @contextmanager
    def around(self, batch: MicroBatch) -> Generator[None, None, None]:
        """For one forward and backward pass."""
        needed = batch.input_ids.numel() > self._micro_batch_tokens and not self._model.is_activation_checkpointing
        if not needed:
            yield
            return
        self._model.activation_checkpointing_enable()
        try:
            yield
        finally:
            self._model.activation_checkpointing_disable()
