"""Logprobs at trained positions equal those of the model's own full forward, whatever its head does."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from peft import LoraConfig
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from longrein.train.adapters import with_adapters
from longrein.train.batch import micro_batches, share_step
from longrein.train.head_probe import KnownHead, probe_head
from longrein.train.score import ChunkedScorer, FullLogitsScorer, ReworkedHeadScorer, Scorer, scorer_for
from longrein.train.token_logprob import UNCHANGED, Capped, LogitMap, Scaled
from longrein.types import Row
from tests import tiny
from tests.train.toy import row
from tests.train.waits import Waits

FAMILIES: list[tuple[str, dict[str, Any], LogitMap]] = [
    ("llama", {}, UNCHANGED),
    ("qwen3", {}, UNCHANGED),
    ("gpt_neox", {}, UNCHANGED),
    ("phi", {"tie_word_embeddings": False}, UNCHANGED),
    ("gemma2", {"head_dim": 16, "final_logit_softcapping": 0.05}, Capped(inner=20.0, outer=0.05)),
    ("cohere", {"logit_scale": 0.25}, Scaled(factor=0.25)),
    ("granite", {"logits_scaling": 3.0}, Scaled(factor=1 / 3)),
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


@pytest.mark.parametrize(("family", "changes", "mapping"), FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_scores_equal_the_full_forward(
    family: str, changes: dict[str, Any], mapping: LogitMap, temperature: float
) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny.config(family, **changes)).double()
    found = probe_head(model)
    assert isinstance(found, KnownHead)
    assert type(found.mapping) is type(mapping)
    assert msgspec.structs.astuple(found.mapping) == pytest.approx(msgspec.structs.astuple(mapping), rel=1e-12)
    scorer = scorer_for(model, temperature)
    assert isinstance(scorer, ChunkedScorer)
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
    head = probe_head(model)
    assert isinstance(head, KnownHead)
    expected = gradient(model, FullLogitsScorer(0.7))
    for scorer in (
        ChunkedScorer(head, 0.7),
        ChunkedScorer(head, 0.7, chunk_logits=264 * 5),
        ChunkedScorer(head, 0.7, chunk_logits=1),
        ReworkedHeadScorer(head.module, 0.7),
    ):
        torch.testing.assert_close(gradient(model, scorer), expected, rtol=1e-9, atol=1e-12)


def test_entropy_is_that_of_the_tempered_distribution() -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny.config("llama")).double()
    (batch,) = micro_batches(share_step([row([3, 4, 5], [2])], "token"), 100)
    scores = scorer_for(model, 0.5).score(model, batch)
    logits = model(input_ids=torch.tensor([[3, 4]])).logits[0, -1] / 0.5
    torch.testing.assert_close(scores.entropies[0], torch.distributions.Categorical(logits=logits).entropy())


@pytest.mark.parametrize("chunk_logits", [264 * 4, 2**25])
def test_scoring_never_waits_for_a_gpu(chunk_logits: int) -> None:
    """But for where the library itself does, in its own forward pass."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny.config("llama"))
    head = probe_head(model)
    assert isinstance(head, KnownHead)
    (batch,) = micro_batches(share_step(rows(), "token"), 10_000)
    with Waits() as by_library:
        batch.layout.forward(model, batch.input_ids)
    with Waits() as waits:
        ChunkedScorer(head, 0.7, chunk_logits).score(model, batch).logprobs.sum().backward()
    assert waits.found == by_library.found


VOCAB, HIDDEN = 4096, 16


class MostLogits(TorchDispatchMode):
    """The most rows of the vocabulary's width that any array had."""

    rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.ndim and value.shape[-1] == VOCAB:
                self.rows = max(self.rows, value.numel() // VOCAB)
        return result


def adapted_head() -> Any:
    made = tiny.config("llama", vocab_size=VOCAB, hidden_size=HIDDEN, tie_word_embeddings=False)
    return with_adapters(AutoModelForCausalLM.from_config(made), LoraConfig(target_modules=["lm_head"]), seed=0)


def plain_head(family: str, **changes: Any) -> Any:
    return AutoModelForCausalLM.from_config(tiny.config(family, vocab_size=VOCAB, hidden_size=HIDDEN, **changes))


@pytest.mark.parametrize(
    "make",
    [
        lambda: plain_head("llama"),
        lambda: plain_head("cohere", logit_scale=0.25),
        lambda: plain_head("gemma2", head_dim=16, final_logit_softcapping=30.0),
        adapted_head,
    ],
    ids=["llama", "cohere", "gemma2", "lora-head"],
)
def test_logits_are_held_for_a_few_tokens_at_a_time(make: Any) -> None:
    torch.manual_seed(0)
    model = make()
    (batch,) = micro_batches(share_step([row([*range(100)] * 2, range(50, 200))], "token"), 10_000)
    head = probe_head(model)
    assert isinstance(head, KnownHead)
    scorer = ChunkedScorer(head, 1.0, chunk_logits=VOCAB * HIDDEN)
    with MostLogits() as most:
        scorer.score(model, batch).logprobs.sum().backward()
    # The head's weights have HIDDEN rows of that width when they are turned.
    assert 0 < most.rows <= HIDDEN


def test_adapters_on_the_head_are_scored_and_trained() -> None:
    torch.manual_seed(0)
    model = adapted_head().double()
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter)
    head = probe_head(model)
    assert isinstance(head, KnownHead)

    def trained(scorer: Scorer) -> torch.Tensor:
        model.zero_grad()
        (batch,) = micro_batches(share_step(rows(), "token"), 10_000)
        scorer.score(model, batch).logprobs.sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])

    expected = trained(FullLogitsScorer(0.7))
    for chunk_logits in (VOCAB * 3, VOCAB * 1000):
        found = trained(ChunkedScorer(head, 0.7, chunk_logits=chunk_logits))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_what_is_neither_a_scale_nor_a_cap_is_left_to_the_model(caplog: pytest.LogCaptureFixture) -> None:
    """As where some ids can never be sampled."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny.config("llama")).double()
    whole = model.forward

    def masked(*args: Any, **kwargs: Any) -> Any:
        output = whole(*args, **kwargs)
        output.logits = output.logits.index_fill(-1, torch.tensor([263]), -1e4)
        return output

    model.forward = masked
    scorer = scorer_for(model, 0.7)
    assert isinstance(scorer, ReworkedHeadScorer)
    assert "neither a scale nor a soft cap" in caplog.text
    torch.testing.assert_close(gradient(model, scorer), gradient(model, FullLogitsScorer(0.7)), rtol=1e-9, atol=1e-12)


def test_a_model_that_names_no_head_is_scored_and_said_to_need_memory(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny.config("llama")).double()
    model.get_output_embeddings = lambda: None
    assert isinstance(scorer_for(model, 0.7), FullLogitsScorer)
    assert "names no output head" in caplog.text
