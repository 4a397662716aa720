"""A trained model as a folder that ``AutoModelForCausalLM`` and every engine read, adapters or not."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from transformers import Trainer

from longrein.train.adapter_weights import base_weights, merged_weights
from longrein.train.adapters import is_adapted
from longrein.train.progress_bars import progress_bars
from longrein.train.sharded import gathered
from longrein.train.weights import bare_model


def save_merged(trainer: Trainer, folder: Path) -> None:
    """Write weights, config, tokenizer and chat template; adapters are merged, in the dtype of the base.

    Every rank comes here, and rank 0 writes. The model in training stays as it is. ``trainer.save_model``
    writes the adapters alone.
    """
    model = bare_model(cast(Any, trainer.model))
    if not is_adapted(model):
        trainer.save_model(str(folder))
        return
    dtypes = {name: tensor.dtype for name, tensor in base_weights(model).items()}
    merged = {name: tensor.to(dtypes[name]) for name, tensor in merged_weights(model).items()}
    weights = gathered(merged, kept=trainer.args.should_save)
    if trainer.args.should_save:
        with progress_bars(shown=not trainer.args.disable_tqdm):
            cast(Any, model).get_base_model().save_pretrained(folder, state_dict=weights)
        cast(Any, trainer.processing_class).save_pretrained(folder)
    trainer.accelerator.wait_for_everyone()  # it is there, whole
