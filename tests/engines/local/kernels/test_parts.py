"""Compiled loops and torch's operators compute the same; and the same bits, whatever the threads and the neighbours."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.engines.local.attend import DecodeAttend
from longrein.engines.local.choose_parts import fastest_parts
from longrein.engines.local.kernels.parts import CompiledDecodeAttend, CompiledNorm, CompiledParts
from longrein.engines.local.kernels.team import Alone
from longrein.engines.local.kv import KvLayout, Slab
from longrein.engines.local.parts import TorchNorm, TorchParts
from tests.engines.local.kernels.inputs import FIRST, compiled, filled_slab, heads_and_turns, rows_of

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 4e-2}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


def copied(slab: Slab) -> Slab:
    twin = Slab(KvLayout(layers=(), dtype=torch.float32), slab.capacity)
    twin.keys, twin.values = [slab.keys[0].clone()], [slab.values[0].clone()]
    return twin


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=6),
    heads=st.integers(1, 3),
    group=st.integers(1, 4),
    size=st.sampled_from([2, 6, 16, 32, 48, 64, 96, 128]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_decoded_rows_see_what_torch_sees(
    lengths: list[int], heads: int, group: int, size: int, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    slab = filled_slab(lengths, heads, size, dtype)
    projected, turns = heads_and_turns(len(lengths), heads, group, size, dtype)
    twin = copied(slab)

    ours = compiled(slab, lengths, turns).run(0, projected)
    theirs = DecodeAttend(rows_of(twin, lengths), FIRST, turns).run(0, projected)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(slab.keys[0], twin.keys[0], atol=tolerance, rtol=tolerance)
    assert torch.equal(slab.values[0], twin.values[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_neither_threads_nor_neighbours_change_a_bit(dtype: torch.dtype) -> None:
    lengths = [37, 5, 130, 64, 1]
    slab = filled_slab(lengths, 2, 32, dtype)
    projected, turns = heads_and_turns(len(lengths), 2, 3, 32, dtype)
    seen: list[torch.Tensor] = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        seen.append(compiled(slab, lengths, turns).run(0, projected))
    alone = compiled(slab, lengths[:1], turns).run(0, projected)
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(alone[0], seen[0][0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ill", [math.nan, math.inf])
@pytest.mark.parametrize(("lengths", "size"), [([9, 12], 16), ([9, 40], 32), ([19, 40], 32), ([32, 16], 64)])
def test_what_is_no_number_comes_through_in_its_row_alone(
    dtype: torch.dtype, ill: float, lengths: list[int], size: int
) -> None:
    for place in ("key", "value", "query"):
        slab = filled_slab(lengths, 1, size, dtype)
        projected, turns = heads_and_turns(2, 1, 2, size, dtype)
        if place == "query":
            projected.turning[FIRST, 0, 3] = ill
        else:
            (slab.keys if place == "key" else slab.values)[0][0, 0, 4, 3] = ill
        seen = compiled(slab, lengths, turns).run(0, projected)
        assert seen[1].isfinite().all(), place
        # An endless key may just be looked away from.
        assert not seen[0].isfinite().all() or (place, ill) == ("key", math.inf), place


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(0, 70),
    size=st.integers(1, 130),
    dtype=st.sampled_from(DTYPES),
    scale=st.sampled_from([1e-4, 1, 50]),
)
def test_rows_are_normed_as_by_torch(count: int, size: int, dtype: torch.dtype, scale: float) -> None:
    torch.manual_seed(count)
    rows, weight = (torch.randn(count, size) * scale).to(dtype), torch.randn(size).to(dtype)
    ours, theirs = (norm(weight, 1e-5)(rows) for norm in (CompiledNorm, TorchNorm))
    # Rounded once, each: half of bfloat16's last bit apart at most.
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6 if dtype == torch.float32 else 2**-7)
    three = torch.randn(2, 3, size).to(dtype).transpose(0, 1)
    torch.testing.assert_close(CompiledNorm(weight, 1e-5)(three), TorchNorm(weight, 1e-5)(three), atol=0, rtol=0)


def test_a_team_of_one_does_all_of_the_work() -> None:
    """Where torch brings no libgomp."""
    lengths = [20, 30]
    slab = filled_slab(lengths, 2, 16, torch.float32)
    projected, turns = heads_and_turns(2, 2, 1, 16, torch.float32)
    expected = compiled(slab, lengths, turns).run(0, projected)
    alone = Alone()
    assert alone.thread_number
    assert alone.size(8) == 1
    assert torch.equal(CompiledDecodeAttend(rows_of(slab, lengths), FIRST, turns, alone).run(0, projected), expected)


def test_without_numba_torch_computes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert isinstance(fastest_parts(torch.float32, cpu), CompiledParts)
    assert isinstance(fastest_parts(torch.float16, cpu), TorchParts)
    assert isinstance(fastest_parts(torch.bfloat16, torch.device("meta")), TorchParts)
    monkeypatch.setitem(sys.modules, "longrein.engines.local.kernels.parts", None)
    assert isinstance(fastest_parts(torch.float32, cpu), TorchParts)
