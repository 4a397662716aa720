"""Models that cannot be fed a tree are told apart, and trained plainly with a line in the log."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from longrein.train.packing import PlainPacking, TreePacking
from longrein.train.tree_attention import attention_of
from longrein.train.tree_fit import packing_for, tree_fit
from tests import tiny


def model(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny.config(family, **changes)).to(dtype)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("gemma", {"head_dim": 16}),
        ("gpt_neox", {}),
        ("phi", {}),
        ("mistral", {}),
        ("qwen3_moe", {}),
        ("olmo2", {}),
        ("granite", {}),
        ("smollm3", {}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ordinary_models_are_fed_trees(family: str, changes: dict[str, Any], dtype: torch.dtype) -> None:
    made = model(family, dtype, **changes).train()
    assert isinstance(packing_for(made, 100, shared_prefix=True), TreePacking)
    assert made.training


@pytest.mark.parametrize(
    ("family", "changes", "says"),
    [
        ("gemma2", {"head_dim": 16}, "caps scores"),
        ("gpt_oss", {"num_local_experts": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "sdpa"),
        ("jamba", {}, "layers of type linear_attention"),
        ("qwen3_next", {"head_dim": 16}, "layers of type linear_attention"),
        ("llama4_text", {}, "chunked_attention"),
        ("llama", {"attention_dropout": 0.1}, "attention_dropout above 0"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
        # Nothing in its configuration says it; the numbers do.
        ("falcon", {}, "could not be fed"),
    ],
)
def test_others_are_packed_plainly_with_a_reason(
    family: str, changes: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = model(family, **changes)
    before = attention_of(made)
    assert isinstance(packing_for(made, 100, shared_prefix=True), PlainPacking)
    assert says in caplog.text
    assert attention_of(made) == before


class DistanceToTheEnd(torch.nn.Module):
    """An embedding that looks at the place in the line that is fed, which in a tree is not the place in the row."""

    def __init__(self, inner: torch.nn.Embedding) -> None:
        super().__init__()
        self.inner = inner
        self.weight = inner.weight

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids) * (1 + torch.arange(input_ids.shape[1]) / 50).view(1, -1, 1)


def test_a_model_that_numbers_differently_is_found_out_by_its_logprobs(caplog: pytest.LogCaptureFixture) -> None:
    made = model("llama")
    made.model.embed_tokens = DistanceToTheEnd(made.model.embed_tokens)
    assert isinstance(packing_for(made, 100, shared_prefix=True), PlainPacking)
    assert "logprobs differ" in caplog.text


def test_a_window_bounds_the_rows_of_a_tree() -> None:
    assert tree_fit(model("mistral", sliding_window=77)).longest_path == 77
    assert tree_fit(model("qwen2", sliding_window=77, use_sliding_window=False)).longest_path == math.inf
    assert tree_fit(model("llama")).longest_path == math.inf


def test_an_encoder_is_told_apart() -> None:
    config = AutoConfig.for_model(
        "t5", vocab_size=264, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2, pad_token_id=0
    )
    from transformers import T5ForConditionalGeneration

    assert "encoder" in tree_fit(T5ForConditionalGeneration(config)).problem


def test_plain_rows_if_they_are_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(packing_for(model("llama"), 100, shared_prefix=False), PlainPacking)
    assert not caplog.text
