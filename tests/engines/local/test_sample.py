"""The draw itself, against a slow and plain reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.engines.local.sample import sample
from longrein.types import Sampling

DRAWS = 4000


def _reference(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    probabilities = np.exp((logits - logits.max()) / sampling.temperature)
    probabilities /= probabilities.sum()
    order = np.argsort(-probabilities, kind="stable")
    keep = order[: sampling.top_k or None]
    nucleus, mass = [], 0.0
    for token in keep:
        if mass >= sampling.top_p:
            break
        nucleus.append(token)
        mass += probabilities[token] / probabilities[keep].sum()
    nucleus = [token for token in nucleus if probabilities[token] >= sampling.min_p * probabilities.max()]
    kept = np.zeros_like(probabilities)
    kept[nucleus] = probabilities[nucleus]
    return kept / kept.sum()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    vocab=st.integers(1, 50),
    temperature=st.floats(0.2, 3.0),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    top_k=st.sampled_from([0, 1, 7, 100, 2**63]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_draws_and_logprobs_follow_the_truncated_distribution(
    seed: int, vocab: int, temperature: float, top_p: float, top_k: int, min_p: float
) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, vocab)
    sampling = Sampling(max_tokens=1, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    expected = _reference(logits, sampling)
    grid = ((np.arange(DRAWS) + 0.5) / DRAWS).astype(np.float32)
    batch = torch.as_tensor(logits, dtype=torch.float32).repeat(DRAWS, 1)
    drawn = sample(batch, [sampling] * DRAWS, grid)
    frequencies = np.bincount(drawn.token_ids, minlength=vocab) / DRAWS
    # Inverting the cumulated distribution on an even grid hits each token to within one grid cell.
    np.testing.assert_allclose(frequencies, expected, atol=1.5 / DRAWS)
    np.testing.assert_allclose(np.exp(drawn.logprobs), expected[drawn.token_ids], rtol=1e-4)


def test_rows_of_one_batch_have_their_own_rules() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).repeat(3, 1)
    rules = [
        Sampling(max_tokens=1, temperature=0.0),
        Sampling(max_tokens=1, temperature=2.0),
        Sampling(max_tokens=1, top_k=2),
    ]
    drawn = sample(logits.clone(), rules, np.array([0.5, 0.0, 0.0], dtype=np.float32))
    assert drawn.token_ids.tolist() == [3, 0, 2]
    plain = torch.log_softmax(logits[0] / 2, dim=-1)[0].item()
    two = torch.log_softmax(logits[0, 2:], dim=-1)[0].item()
    assert drawn.logprobs.tolist() == pytest.approx([0.0, plain, two], abs=1e-6)


def test_the_largest_uniform_never_picks_a_token_of_no_mass() -> None:
    logits = torch.full((1, 1000), float("-inf"))
    logits[0, 3] = 0.0
    largest = np.array([1 - 2**-24], dtype=np.float32)
    drawn = sample(logits, [Sampling(max_tokens=1)], largest)
    assert drawn.token_ids.tolist() == [3]
