"""Which models can be fed a prefix tree: known from the configuration, then proven once by numbers."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
import math
from typing import Any, cast

import msgspec
import numpy as np
import torch
from transformers import PreTrainedModel

from longrein.train.batch import MicroBatch, SharedRow
from longrein.train.layouts import TreeRows, wants_router_loss
from longrein.train.packing import Packing, PlainPacking, RouterPacking, TreePacking
from longrein.train.score import scorer_for
from longrein.train.tree_attention import attention_of
from longrein.types import Row

logger = logging.getLogger(__name__)

ORDINARY_LAYERS = frozenset({"full_attention", "attention", "sliding_attention"})
"""Layer types of configurations that name them; all others (linear, recurrent, chunked) carry state along a row."""
DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
LENGTH_DEPENDENT_ROPES = frozenset({"dynamic", "longrope"})


class TreeFit(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration says about trees."""

    problem: str
    """Why it cannot be; empty if nothing speaks against it."""
    longest_path: float
    """Up to which length of a row."""


def packing_for(model: PreTrainedModel, micro_batch_tokens: int, *, shared_prefix: bool) -> Packing:
    """Trees if they are wanted and the model gives the same logprobs with them; else plain rows, and a log line why."""
    packing = _packing_for(model, micro_batch_tokens, shared_prefix=shared_prefix)
    return RouterPacking(packing) if wants_router_loss(model) else packing


def _packing_for(model: PreTrainedModel, micro_batch_tokens: int, *, shared_prefix: bool) -> Packing:
    if not shared_prefix:
        return PlainPacking(micro_batch_tokens)
    fit = tree_fit(model)
    problem = fit.problem or _numeric_problem(model)
    if problem:
        logger.warning("shared prefixes are computed once a row, not once: %s", problem)
        return PlainPacking(micro_batch_tokens)
    hidden_size = int(model.config.get_text_config().hidden_size)
    return TreePacking(micro_batch_tokens, hidden_size, longest_path=fit.longest_path)


def tree_fit(model: PreTrainedModel) -> TreeFit:
    """Judge a model by its configuration alone."""
    config = model.config.get_text_config()
    return TreeFit(problem=_attention_problem(model, config) or _position_problem(config), longest_path=_window(config))


def _attention_problem(model: PreTrainedModel, config: Any) -> str:
    others = set(getattr(config, "layer_types", None) or ()) - ORDINARY_LAYERS
    dropouts = [name for name in DROPOUTS if getattr(config, name, 0.0)]
    judgements = {
        "the model has an encoder": model.config.is_encoder_decoder,
        f"the model has layers of type {', '.join(sorted(map(str, others)))}": others,
        "the model carries a state along a row": getattr(model, "_is_stateful", False),
        "the model's attention caps scores": getattr(config, "attn_logit_softcapping", None),
        f"the model has {', '.join(dropouts)} above 0": dropouts,
        "the model's attention is not the library's sdpa": not cast(Any, model)._supports_sdpa,
    }
    return next((problem for problem, holds in judgements.items() if holds), "")


def _position_problem(config: Any) -> str:
    ropes: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    kinds = {str(rope.get("rope_type")) for rope in (ropes, *ropes.values()) if isinstance(rope, dict)}
    changing = kinds & LENGTH_DEPENDENT_ROPES
    return f"the model's rotary embedding ({', '.join(sorted(changing))}) depends on the length fed" if changing else ""


def _window(config: Any) -> float:
    """Sliding layers equal full ones for rows within the window."""
    if getattr(config, "use_sliding_window", None) is False:
        return math.inf
    return getattr(config, "sliding_window", None) or math.inf


def _numeric_problem(model: PreTrainedModel) -> str:
    """Score rows that fork, plainly and as a tree."""
    training, attention = model.training, attention_of(model)
    model.eval()
    try:
        with torch.no_grad():
            problem = _difference(model)
    except (RuntimeError, TypeError, ValueError) as error:
        problem = f"a tree could not be fed ({error})"
    finally:
        model.train(training)
    if problem:
        model.set_attn_implementation(attention)
    return problem


def _difference(model: PreTrainedModel) -> str:
    """Compare with the plain rows, beside what it would do to them if branches saw each other."""
    vocab_size = int(cast(Any, model.get_input_embeddings()).weight.shape[0])
    rows = _forking_rows(vocab_size)
    (plain,) = PlainPacking(2**20).pack(rows)
    (tree,) = TreePacking(2**20, hidden_size=1).pack(rows)
    expected = _logprobs(model, plain)
    error = float((_logprobs(model, tree) - expected).abs().max())
    harm = float((_logprobs(model, _without_branches(tree)) - expected).abs().max())
    rounding = torch.finfo(next(model.parameters()).dtype).eps * math.log(vocab_size)
    bound = min(harm / 4, 1000 * rounding)
    return "" if error <= bound else f"logprobs differ by {error:.2g}, more than {bound:.2g}, from those of plain rows"


def _forking_rows(vocab_size: int) -> list[SharedRow]:
    """Three rows with a common prompt, two of which fork a second time."""
    draw = np.random.default_rng(0)
    prompt, turn = draw.integers(0, vocab_size, 24), draw.integers(0, vocab_size, 12)
    tails = draw.integers(0, vocab_size, (3, 8))
    streams = [(prompt, turn, tails[0]), (prompt, turn, tails[1]), (prompt, tails[2])]
    return [SharedRow(row=_row(number, np.concatenate(parts)), share=1.0) for number, parts in enumerate(streams)]


def _row(number: int, stream: Any) -> Row:
    return Row(
        rollout_id=str(number),
        group_id="",
        token_ids=stream.astype(np.int32),
        loss_mask=np.arange(stream.size) > 0,
        # No sampler was there; the place of the token is noted, by which both packings can be put into one order.
        logprobs=(100 * number + np.arange(stream.size)).astype(np.float32),
        advantage=1.0,
    )


def _without_branches(tree: MicroBatch) -> MicroBatch:
    layout = cast(TreeRows, tree.layout)
    ends = torch.full_like(layout.subtree_ends, layout.subtree_ends.numel())
    return msgspec.structs.replace(tree, layout=msgspec.structs.replace(layout, subtree_ends=ends))


def _logprobs(model: PreTrainedModel, batch: MicroBatch) -> torch.Tensor:
    """In the order of the rows."""
    found = scorer_for(model, 1.0).score(model, batch.to(model.device, torch.float32)).logprobs
    return found[torch.argsort(batch.sampler_logprobs).to(found.device)]
