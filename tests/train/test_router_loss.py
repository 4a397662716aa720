"""Router losses of mixtures of experts: every unique token of a step once, whatever is fed how often."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from longrein.errors import ConfigError
from longrein.train.batch import share_step
from longrein.train.deal import Dealer
from longrein.train.gradient import StepTotals, WholeStep, add_gradient
from longrein.train.objective import CrossEntropy
from longrein.train.packing import Packing, PlainPacking, RouterPacking, TreePacking
from longrein.train.prefix_tree import prefix_tree
from longrein.train.ranks import OneRank
from longrein.train.router_loss import NO_ROUTER_LOSS, LoadBalancing, router_loss_for
from longrein.train.score import scorer_for
from longrein.train.tree_cut import tree_cost
from longrein.train.tree_fit import packing_for
from longrein.types import Row
from tests import tiny
from tests.train.exact import sharing_rows
from tests.train.test_trainer import config, good, step_lines, trainer
from tests.train.toy import Recorder, Script, row
from tests.train.waits import Waits

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_experts_per_tok": 2, "initializer_range": 0.1}
FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 24, "head_dim": 8},
}
ASKS = {"output_router_logits": True, "router_aux_loss_coef": 0.3}


def mixture(family: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    made = tiny.config(family, **SIZES, **FAMILIES[family], **changes)
    return AutoModelForCausalLM.from_config(made).train()


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {family: mixture(family, **ASKS) for family in FAMILIES}


def step(model: Any, rows: list[Row], packing: Packing) -> StepTotals:
    model.zero_grad()
    return add_gradient(
        model,
        packing.pack(share_step(rows, "token")),
        scorer=scorer_for(model, 1.0),
        objective=CrossEntropy(),
        backward=lambda loss: loss.backward(),
        around=lambda _turn: nullcontext(),
        step=WholeStep(ranks=OneRank(), policy_version=0, router_loss=router_loss_for(model)),
    )


def gradient(model: Any) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def unique_tokens(rows: list[Row]) -> int:
    return prefix_tree([item.token_ids[: np.flatnonzero(item.loss_mask)[-1]] for item in rows]).token_ids.size


PACKINGS = st.builds(PlainPacking, st.integers(1, 150)) | st.builds(TreePacking, st.integers(1, 150), st.just(8))


@settings(deadline=None, max_examples=80)
@given(sharing_rows(), PACKINGS)
def test_every_unique_token_of_a_step_weighs_the_same_once(rows: list[Row], packing: Packing) -> None:
    batches = RouterPacking(packing).pack(share_step(rows, "token"))
    size = unique_tokens(rows)
    fed: set[tuple[int, ...]] = set()
    for batch in batches:
        assert batch.router_shares.shape == (batch.input_ids.numel(),)
        counted = set(torch.nonzero(batch.router_shares).flatten().tolist())
        for item in batch.placed:
            ids = item.row.token_ids[: item.places.size].tolist()
            for depth, place in enumerate(item.places.tolist()):
                if place in counted:
                    counted.remove(place)
                    assert float(batch.router_shares[place]) == 1 / size
                    beginning = tuple(ids[: depth + 1])
                    assert beginning not in fed, "counted before"
                    fed.add(beginning)
        assert not counted, "padding counts nothing"
    assert len(fed) == size


@settings(deadline=None, max_examples=30)
@given(sharing_rows(), PACKINGS, st.sampled_from([1, 2, 4]))
def test_all_weights_of_all_ranks_are_one(rows: list[Row], packing: Packing, ranks: int) -> None:
    """However finely a step is cut for them."""
    dealer = Dealer(RouterPacking(packing), tree_cost(8, 10_000), ranks)
    parts = dealer.deal(share_step(rows, "token"))
    assert sum(float(batch.router_shares.sum()) for part in parts for batch in part.batches) == pytest.approx(1.0)


def test_no_balance_waits_for_a_gpu(models: dict[str, Any]) -> None:
    model = models["mixtral"]
    rows = [row([1, 2, 3, 4, 5], [3]), row([1, 2, 9, 9], [2, 3])]
    (batch,) = RouterPacking(PlainPacking(10_000)).pack(share_step(rows, "token"))
    assert batch.router_share == pytest.approx(float(batch.router_shares.sum()))
    loss = router_loss_for(model)
    with loss.watching(model) as readings:
        scorer_for(model, 1.0).score(model, batch)
    with Waits() as waits:
        assert loss.of(readings, batch).requires_grad
        loss.of(readings, msgspec.structs.replace(batch, router_share=0.0))
    assert waits.found == []


@settings(deadline=None, max_examples=15)
@given(family=st.sampled_from(sorted(FAMILIES)), rows=sharing_rows(), checkpointing=st.booleans())
def test_in_one_piece_the_layout_makes_no_difference(
    models: dict[str, Any], family: str, rows: list[Row], checkpointing: bool
) -> None:
    model = models[family]
    plain = step(model, rows, RouterPacking(PlainPacking(10_000)))
    expected = gradient(model)
    if checkpointing:
        model.activation_checkpointing_enable()
    tree = step(model, rows, RouterPacking(TreePacking(10_000, hidden_size=8)))
    if checkpointing:
        model.activation_checkpointing_disable()
    assert tree.measures["router_loss"] == pytest.approx(plain.measures["router_loss"], rel=1e-5)
    assert float(tree.loss) == pytest.approx(float(plain.loss), rel=1e-5)
    assert torch.linalg.norm(gradient(model) - expected) <= 1e-4 * torch.linalg.norm(expected)


def a_row(size: int, number: int = 0) -> Row:
    ids = np.random.default_rng(number).integers(0, 264, size).tolist()
    return row(ids, range(1, size), rollout_id=f"r{number}")


@pytest.mark.parametrize("family", FAMILIES)
def test_of_one_row_it_is_the_librarys(models: dict[str, Any], family: str) -> None:
    model, item = models[family], a_row(30)
    totals = step(model, [item], RouterPacking(PlainPacking(10_000)))
    ours = gradient(model)
    model.zero_grad()
    ids = torch.from_numpy(item.token_ids[:29]).long()[None]
    found = model(ids, output_router_logits=True)
    assert totals.measures["router_loss"] == pytest.approx(found.aux_loss.item(), rel=1e-5)
    logprobs = torch.log_softmax(found.logits[0], -1)[torch.arange(29), torch.from_numpy(item.token_ids[1:]).long()]
    loss = -logprobs.mean() + 0.3 * found.aux_loss
    assert float(totals.loss) == pytest.approx(loss.item(), rel=1e-5)
    loss.backward()
    torch.testing.assert_close(ours, gradient(model), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_fed_apart_are_weighed_by_their_tokens(models: dict[str, Any], family: str) -> None:
    model, rows = models[family], [a_row(41, 1), a_row(11, 2)]
    alone = [step(model, [item], RouterPacking(PlainPacking(10_000))).measures["router_loss"] for item in rows]
    both = step(model, rows, RouterPacking(PlainPacking(1))).measures["router_loss"]
    assert both == pytest.approx((40 * alone[0] + 10 * alone[1]) / 50, rel=1e-5)


def test_a_beginning_that_is_fed_again_counts_once(models: dict[str, Any]) -> None:
    """The second of two equal rows feeds nothing new, though it is fed whole."""
    model, item = models["mixtral"], a_row(20)
    once = step(model, [item], RouterPacking(PlainPacking(10_000)))
    twice = step(model, [item, item], RouterPacking(PlainPacking(1)))
    assert (once.fed_tokens, twice.fed_tokens) == (19, 38)
    assert twice.measures["router_loss"] == pytest.approx(once.measures["router_loss"], rel=1e-5)


def test_models_that_do_not_ask_have_none(models: dict[str, Any]) -> None:
    silent = [mixture("mixtral"), mixture("mixtral", **{**ASKS, "router_aux_loss_coef": 0.0})]
    for model in [*silent, AutoModelForCausalLM.from_config(tiny.config("llama"))]:
        assert router_loss_for(model) is NO_ROUTER_LOSS
        packing = packing_for(model, 1000, shared_prefix=True)
        totals = step(model, [a_row(9)], packing)
        assert "router_loss" not in totals.measures
        assert isinstance(packing, TreePacking), "and trees are made of experts' tokens too"
    assert router_loss_for(models["mixtral"]) == LoadBalancing(coefficient=0.3, experts_per_token=2)
    assert isinstance(packing_for(models["mixtral"], 1000, shared_prefix=True), RouterPacking)


def test_a_model_that_does_not_say_how_many_experts_a_token_has_is_refused() -> None:
    model = AutoModelForCausalLM.from_config(tiny.config("llama", **ASKS))
    with pytest.raises(ConfigError, match="num_experts_per_tok"):
        router_loss_for(model)


def test_a_run_trains_and_logs_it(tmp_path: Path) -> None:
    folder = tiny.save_model(tmp_path / "mixture", "mixtral", **SIZES, **FAMILIES["mixtral"], **ASKS)
    made = trainer(folder, config(tmp_path / "out", max_steps=2, micro_batch_tokens=8), Script(good), Recorder())
    made.train()
    for line in step_lines(made):
        assert 1 < line["router_loss"] < 4, "two experts a token: 2 where they are even, 4 where all take the same"
    assert made.model.config.output_router_logits is True, "saved as it was"
