"""Tree training changes speed, never the gradient."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from longrein.errors import ConfigError
from longrein.train.layouts import TreeRows
from longrein.train.objective import CrossEntropy, Objective
from longrein.train.packing import PlainPacking, TreePacking
from longrein.train.prefix_tree import prefix_tree
from longrein.train.tree_attention import segments, tree_attention_forward, tree_mask, use_tree_attention
from longrein.train.tree_blocks import sees, tree_block_mask
from longrein.types import Row
from tests import tiny
from tests.train.exact import FAMILIES, exact_model, sharing_rows, step_gradient
from tests.train.table import objective
from tests.train.toy import row
from tests.train.waits import Waits

OBJECTIVES: list[Objective] = [
    CrossEntropy(),
    objective(loss="grpo", epsilon_high=0.3),
    objective(loss="gspo", epsilon=0.02, epsilon_high=0.02),
]


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: exact_model(name) for name in FAMILIES}


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(sorted(FAMILIES)),
    rows=sharing_rows(),
    chosen=st.sampled_from(OBJECTIVES),
    budget=st.integers(1, 120),
    checkpointing=st.booleans(),
)
def test_the_gradient_of_a_tree_is_that_of_its_rows(
    models: dict[str, Any], name: str, rows: list[Row], chosen: Objective, budget: int, checkpointing: bool
) -> None:
    model = models[name]
    plain = step_gradient(model, rows, chosen, PlainPacking(10_000))
    if checkpointing:
        model.activation_checkpointing_enable()
    tree = step_gradient(model, rows, chosen, TreePacking(budget, hidden_size=8))
    if checkpointing:
        model.activation_checkpointing_disable()
    assert torch.linalg.norm(tree.values - plain.values) <= 1e-9 * torch.linalg.norm(plain.values)
    assert tree.totals.tokens == plain.totals.tokens
    for measure, value in plain.totals.measures.items():
        assert tree.totals.measures[measure] == pytest.approx(value, rel=1e-6, abs=1e-9), measure


def forking_rows(random: np.random.Generator, sizes: tuple[int, int, int] = (150, 60, 40)) -> list[Row]:
    """Four rows, two turns deep; long enough for several blocks of the kernel."""
    prompt = random.integers(0, 264, sizes[0])
    rows = []
    for first in range(2):
        turn = random.integers(0, 264, sizes[1])
        for second in range(2):
            ids = np.concatenate([prompt, turn, random.integers(0, 264, sizes[2])]).tolist()
            rows.append(row(ids, range(sizes[0], len(ids)), rollout_id=f"r{first}{second}", advantage=random.normal()))
    return rows


def test_long_segments_over_several_blocks_are_exact(models: dict[str, Any]) -> None:
    rows = forking_rows(np.random.default_rng(1), sizes=(700, 300, 100))
    plain = step_gradient(models["qwen3"], rows, CrossEntropy(), PlainPacking(10_000))
    tree = step_gradient(models["qwen3"], rows, CrossEntropy(), TreePacking(10_000, hidden_size=8))
    assert torch.linalg.norm(tree.values - plain.values) <= 1e-9 * torch.linalg.norm(plain.values)
    assert tree.totals.fed_tokens == 700 + 2 * 300 + 4 * 99
    assert plain.totals.fed_tokens == plain.totals.row_tokens == tree.totals.row_tokens == 4 * 1099


@pytest.mark.parametrize("kind", ["weights", "autocast"])
def test_in_bfloat16_a_tree_is_no_further_from_float32_than_twice_its_rows(kind: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny.config("llama", initializer_range=0.1))
    rows = forking_rows(np.random.default_rng(2))
    packings = {"plain": PlainPacking(10_000), "tree": TreePacking(10_000, hidden_size=8)}
    exact = step_gradient(model, rows, CrossEntropy(), packings["plain"]).values
    if kind == "weights":
        model = model.to(torch.bfloat16)
    errors: dict[str, float] = {}
    for name, packing in packings.items():
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            values = step_gradient(model, rows, CrossEntropy(), packing).values
        errors[name] = float(torch.linalg.norm(values.float() - exact))
    assert 0 < errors["tree"] <= 2 * errors["plain"]


@settings(deadline=None, max_examples=60)
@given(sharing_rows(most=9))
def test_segments_are_stretches_without_a_fork(rows: list[Row]) -> None:
    tree = prefix_tree([item.token_ids for item in rows])
    found = segments(torch.from_numpy(tree.subtree_ends))
    assert [part.start for part in found] == [0, *(part.stop for part in found)][:-1]
    assert found[-1].stop == tree.token_ids.size
    for part in found:
        assert set(tree.subtree_ends[part.start : part.stop].tolist()) == {part.subtree_end}
        assert part.is_root == (tree.depths[part.start] == 0)


def attention_by_hand(query: Tensor, key: Tensor, value: Tensor, subtree_ends: Tensor) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    places = torch.arange(subtree_ends.numel())
    sees = (places[None] <= places[:, None]) & (places[:, None] < subtree_ends[None])
    scores = (query @ key.transpose(-1, -2) * 0.3).masked_fill(~sees, -torch.inf)
    return torch.softmax(scores, -1) @ value


@settings(deadline=None, max_examples=40)
@given(sharing_rows(most=9), st.sampled_from([(1, 1), (4, 2), (3, 1), (6, 6)]))
def test_attention_is_that_of_the_dense_mask(rows: list[Row], heads: tuple[int, int]) -> None:
    ends = torch.from_numpy(prefix_tree([item.token_ids for item in rows]).subtree_ends)
    torch.manual_seed(0)
    parts = [
        torch.randn(1, ends.numel(), count, 8, dtype=torch.float64).transpose(1, 2).requires_grad_()
        for count in (heads[0], heads[1], heads[1])
    ]
    layer = torch.nn.Module()
    found, weights = tree_attention_forward(layer, *parts, tree_mask(ends), scaling=0.3)
    assert weights is None
    expected = attention_by_hand(*parts, ends).transpose(1, 2)
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad(found, parts, upstream), torch.autograd.grad(expected, parts, upstream), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_arrays_that_are_not_dense_are_read_right() -> None:
    ends = torch.tensor([5, 5, 3, 5, 5])
    parts = [torch.randn(1, 2, 8, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    turned = [part.transpose(2, 3) for part in parts]
    found, _ = tree_attention_forward(torch.nn.Module(), *turned, tree_mask(ends), scaling=0.3)
    expected = attention_by_hand(*turned, ends).transpose(1, 2)
    torch.testing.assert_close(found, expected)
    # The gradient of a sum is one number, repeated without being written.
    for one, other in zip(
        torch.autograd.grad(found.sum(), parts), torch.autograd.grad(expected.sum(), parts), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_the_block_mask_of_a_gpu_says_the_same() -> None:
    """The kernel needs a GPU; what its mask lets through does not."""
    from torch.nn.attention.flex_attention import create_mask

    tree = prefix_tree([item.token_ids for item in forking_rows(np.random.default_rng(3), (20, 9, 5))])
    size = tree.token_ids.size
    mask = create_mask(sees(torch.from_numpy(tree.subtree_ends)), None, None, size, size, device="cpu")
    expected = np.zeros((size, size), np.bool_)
    for path in tree.paths:
        for depth, place in enumerate(path):
            expected[place, path[: depth + 1]] = True
    np.testing.assert_array_equal(mask[0, 0].numpy(), expected)


@st.composite
def long_trees(draw: st.DrawFn) -> Tensor:
    """Subtree ends of some hundred tokens, with forks and roots that often stand at the edge of a block."""
    size = draw(st.sampled_from([1, 127, 128, 129, 256, 300, 384, 511, 640]))
    streams = [np.arange(size)]
    for number in range(draw(st.integers(0, 6))):
        parent = streams[draw(st.integers(0, len(streams) - 1))]
        kept = min(parent.size, draw(st.sampled_from([0, 1, 100, 128, 200, 256]) | st.integers(0, size)))
        tail = draw(st.sampled_from([1, 28, 128, 156, 256]) | st.integers(1, 300))
        streams.append(np.concatenate([parent[:kept], 10_000 * (number + 1) + np.arange(tail)]))
    return torch.from_numpy(prefix_tree(sorted(streams, key=lambda stream: stream.tolist())).subtree_ends)


@settings(deadline=None, max_examples=60)
@given(long_trees())
def test_blocks_are_those_that_the_library_finds_pair_by_pair(ends: Tensor) -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    expected = create_block_mask(sees(ends), None, None, ends.numel(), ends.numel(), device="cpu")
    found = tree_block_mask(ends)
    assert (found.shape, found.BLOCK_SIZE, found.seq_lengths) == (
        expected.shape,
        expected.BLOCK_SIZE,
        expected.seq_lengths,
    )
    for kind in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        counts = getattr(found, kind)
        assert torch.equal(counts, getattr(expected, kind)), kind
        named = kind.replace("num_blocks", "indices")
        for block, count in enumerate(counts[0, 0].tolist()):
            listed = [getattr(mask, named)[0, 0, block, :count].tolist() for mask in (found, expected)]
            assert listed[0] == listed[1], named


def test_a_long_tree_has_a_small_mask() -> None:
    """Pairs of tokens would be 16k * 16k."""

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            sizes = [value.numel() for value in tree_leaves(result) if isinstance(value, Tensor)]
            self.numbers = max([self.numbers, *sizes])
            return result

    size = 2**14
    ends = torch.full((size,), size)
    ends[5000:9000] = 9000
    with Largest() as largest, Waits() as waits:
        tree_block_mask(ends)
    assert waits.found == []
    assert 0 < largest.numbers <= (size // 128 + 1) ** 2


def test_a_model_that_takes_trees_still_takes_everything_else() -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny.config("llama")).eval()
    ids = torch.randint(3, 264, (2, 12))
    padding = torch.ones_like(ids)
    padding[0, :5] = 0
    with torch.no_grad():
        before = [model(ids).logits, model(ids, attention_mask=padding).logits, model.generate(ids, max_new_tokens=4)]
        use_tree_attention(model)
        after = [model(ids).logits, model(ids, attention_mask=padding).logits, model.generate(ids, max_new_tokens=4)]
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_saved_model_does_not_know_of_trees(tmp_path: Any) -> None:
    model = AutoModelForCausalLM.from_config(tiny.config("llama"))
    use_tree_attention(model)
    model.save_pretrained(tmp_path)
    assert "longrein" not in (tmp_path / "config.json").read_text()
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"


def test_a_wrapped_model_is_found_inside() -> None:
    model = AutoModelForCausalLM.from_config(tiny.config("llama"))
    use_tree_attention(torch.nn.ModuleDict({"inner": model}))
    assert model.config._attn_implementation == "longrein_tree"
    with pytest.raises(ConfigError, match="transformers"):
        use_tree_attention(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("option", ["softcap", "s_aux", "dropout"])
def test_what_a_tree_cannot_have_is_refused(option: str) -> None:
    part = torch.randn(1, 2, 3, 4)
    layer = SimpleNamespace()
    with pytest.raises(ConfigError, match=option):
        tree_attention_forward(layer, part, part, part, tree_mask(torch.tensor([3, 3, 3])), **{option: 0.5})  # type: ignore[arg-type]


def test_a_layout_moves_to_a_device() -> None:
    layout = TreeRows(depths=torch.arange(3), subtree_ends=torch.full((3,), 3)).to(torch.device("meta"))
    assert isinstance(layout, TreeRows)
    assert layout.depths.device.type == layout.subtree_ends.device.type == "meta"
