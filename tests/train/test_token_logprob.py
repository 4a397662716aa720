"""Logprobs and entropies of chosen tokens, and their gradient, are those of a log-softmax over everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.train import token_logprob
from longrein.train.asked import Asked
from longrein.train.token_logprob import Capped, LogitMap, Scaled, score_logits

MAPS: dict[str, tuple[LogitMap, Any]] = {
    "scale": (Scaled(factor=0.3), lambda x: 0.3 * x),
    "cap": (Capped(inner=0.5, outer=2.0), lambda x: 2.0 * torch.tanh(0.5 * x)),
}


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=9),
    vocab_size=st.integers(3, 20),
    name=st.sampled_from(sorted(MAPS)),
    temperature=st.sampled_from([1.0, 0.6]),
    piece=st.integers(1, 60),
)
def test_a_piece_at_a_time_is_the_whole_log_softmax(
    counts: list[int], vocab_size: int, name: str, temperature: float, piece: int
) -> None:
    random = np.random.default_rng(len(counts) * vocab_size)
    predictors = np.repeat(np.arange(len(counts)) * 2, counts)
    targets = random.integers(0, vocab_size, predictors.size)
    asked = Asked.of(predictors, targets)
    outputs = torch.from_numpy(random.normal(0, 3, (len(counts), vocab_size))).requires_grad_()
    upstream = torch.from_numpy(random.normal(0, 1, predictors.size))
    mapping, by_hand = MAPS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_logprob, "PIECE_LOGITS", piece)
        scores = score_logits(outputs, asked, mapping.tempered(temperature))
        (found,) = torch.autograd.grad(scores.logprobs, outputs, upstream)
    every = torch.log_softmax(by_hand(outputs) / temperature, -1)[predictors // 2]
    expected = every[torch.arange(predictors.size), torch.from_numpy(targets)]
    tight: dict[str, float] = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(scores.logprobs, expected, **tight)
    torch.testing.assert_close(scores.entropies, -(every.exp() * every).sum(-1), **tight)
    torch.testing.assert_close(found, torch.autograd.grad(expected, outputs, upstream)[0], **tight)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=9), st.data())
def test_a_part_of_what_is_asked_is_what_those_positions_ask(counts: list[int], data: st.DataObject) -> None:
    predictors = np.repeat(np.arange(len(counts)) * 3, counts)
    targets = np.arange(predictors.size)
    asked = Asked.of(predictors, targets)
    assert asked.positions[asked.sources].tolist() == predictors.tolist()
    start = data.draw(st.integers(0, len(counts) - 1))
    stop = data.draw(st.integers(start + 1, len(counts)))
    part = asked.part(start, stop)
    inside = (predictors >= 3 * start) & (predictors < 3 * stop)
    assert part.positions[part.sources].tolist() == predictors[inside].tolist()
    assert part.targets.tolist() == targets[inside].tolist()
    assert np.diff(part.offsets).tolist() == counts[start:stop]
