"""Logprobs at trained positions equal those of the model's own full forward, whatever its head does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from longrein.train.batch import micro_batches, share_step
from longrein.train.score import FullLogitsScorer, PlainHeadScorer, ReworkedHeadScorer, Scorer, scorer_for
from longrein.types import Row
from tests import tiny
from tests.train.toy import row

FAMILIES: list[tuple[str, dict[str, Any], type]] = [
    ("llama", {}, PlainHeadScorer),
    ("qwen3", {}, PlainHeadScorer),
    ("gpt_neox", {}, PlainHeadScorer),
    ("phi", {"tie_word_embeddings": False}, PlainHeadScorer),
    ("gemma2", {"head_dim": 16, "final_logit_softcapping": 0.05}, ReworkedHeadScorer),
    ("cohere", {"logit_scale": 0.25}, ReworkedHeadScorer),
    ("granite", {"logits_scaling": 3.0}, ReworkedHeadScorer),
]


def rows() -> list[Row]:
    random = np.random.default_rng(0)
    return [
        row(random.integers(0, 264, size).tolist(), range(size // 2, size), rollout_id=f"r{size}")
        for size in (9, 30, 14)
    ]


def by_hand(model: Any, item: Row, temperature: float) -> torch.Tensor:
    ids = torch.from_numpy(item.token_ids.astype(np.int64))
    logprobs = torch.log_softmax(model(input_ids=ids[None]).logits[0].double() / temperature, -1)
    at = np.flatnonzero(item.loss_mask)
    return logprobs[at - 1, ids[at]]


@pytest.mark.parametrize(("family", "changes", "kind"), FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_scores_equal_the_full_forward(family: str, changes: dict[str, Any], kind: type, temperature: float) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny.config(family, **changes)).double()
    scorer = scorer_for(model, temperature)
    assert type(scorer) is kind
    (batch,) = micro_batches(share_step(rows(), "token"), 10_000)
    scores = scorer.score(model, batch.to(torch.device("cpu"), torch.float64))
    longest_first = sorted(rows(), key=lambda item: -item.token_ids.size)
    expected = torch.cat([by_hand(model, item, temperature) for item in longest_first])
    # RMS norms compute in float32 whatever the model's dtype.
    torch.testing.assert_close(scores.logprobs, expected, rtol=1e-6, atol=1e-6)


def gradient(model: Any, scorer: Scorer) -> torch.Tensor:
    model.zero_grad()
    (batch,) = micro_batches(share_step(rows(), "token"), 10_000)
    scores = scorer.score(model, batch.to(torch.device("cpu"), torch.float64))
    (scores.logprobs * torch.linspace(-1, 1, scores.logprobs.numel())).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def test_every_scorer_and_every_chunk_size_gives_one_gradient_and_entropy() -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny.config("llama")).double()
    head = model.get_output_embeddings()
    expected = gradient(model, FullLogitsScorer(0.7))
    for scorer in (
        PlainHeadScorer(head, 0.7),
        PlainHeadScorer(head, 0.7, chunk_logits=264 * 5),
        PlainHeadScorer(head, 0.7, chunk_logits=1),
        ReworkedHeadScorer(head, 0.7),
    ):
        torch.testing.assert_close(gradient(model, scorer), expected, rtol=1e-9, atol=1e-12)


def test_entropy_is_that_of_the_tempered_distribution() -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny.config("llama")).double()
    (batch,) = micro_batches(share_step([row([3, 4, 5], [2])], "token"), 100)
    scores = scorer_for(model, 0.5).score(model, batch)
    logits = model(input_ids=torch.tensor([[3, 4]])).logits[0, -1] / 0.5
    torch.testing.assert_close(scores.entropies[0], torch.distributions.Categorical(logits=logits).entropy())
