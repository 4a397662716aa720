"""KV of the batch takes no more memory than it was given, whatever comes and goes, and is what the trainer computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longrein.engines.local.kv import KvLayout, KvMemory, LayerShape, Slab, Slabs, capacity_for
from longrein.engines.local.model import LocalModel
from tests.engines.local.reference import Driver, completion, forward_logprobs, random_ids, request

_REQUEST = st.tuples(st.sampled_from([3, 200, 250, 500, 520]), st.sampled_from([1, 9, 30]))


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    sizes=st.lists(_REQUEST, min_size=2, max_size=9),
    pauses=st.lists(st.integers(0, 12), min_size=9, max_size=9),
    batch_tokens=st.sampled_from([600, 1100, 2600]),
)
def test_memory_of_the_batch_is_bounded(
    llama: LocalModel, sizes: list[tuple[int, int]], pauses: list[int], batch_tokens: int
) -> None:
    driver = Driver(llama, batch_tokens=batch_tokens)
    asked = {}
    # The longest may be let in alone; and a row that moves has two places.
    longest = max(capacity_for(prompt + more) for prompt, more in sizes)
    bound = max(batch_tokens, longest) + longest
    for index, ((prompt, more), pause) in enumerate(zip(sizes, pauses, strict=False)):
        wanted = request(f"c{index}", random_ids(index, prompt), max_tokens=more)
        asked[driver.submit(wanted)] = wanted
        for _ in range(pause):
            driver.scheduler.step()
            assert driver.scheduler.kv_tokens <= bound
    while not driver.scheduler.idle:
        driver.scheduler.step()
        assert driver.scheduler.kv_tokens <= bound
    for answer in driver.scheduler.take_answers():
        done, prompt_ids = completion(answer.reply), asked[answer.ticket].prompt_ids
        expected = forward_logprobs(llama.module, prompt_ids, done.token_ids)
        np.testing.assert_allclose(done.logprobs, expected, atol=1e-4)


def test_rows_of_many_lengths_leave_little_room_unused(llama: LocalModel) -> None:
    """Rows that pass through one slab after another, together: each slab once had room for all."""
    driver = Driver(llama, batch_tokens=8 * 1024, cache_tokens=0)
    for index in range(8):
        driver.submit(request(f"c{index}", random_ids(index, 240), max_tokens=300))
    most = 0
    while not driver.scheduler.idle:
        driver.scheduler.step()
        most = max(most, driver.scheduler.kv_tokens)
    assert most <= 9 * 1024


def test_rows_that_are_expected_find_room_in_one_piece() -> None:
    shape = LayerShape(key_heads=1, key_size=2, value_heads=1, value_size=2)
    memory = KvMemory(KvLayout(layers=(shape,), dtype=torch.float32), 8 * 256)
    slabs = Slabs(memory)
    slabs.expect([200, 100, 256, 3, 17])
    places = [slabs.take(10)]
    keys = places[0].slab.keys[0]
    places += [slabs.take(200) for _ in range(4)]
    assert all(place.slab.keys[0] is keys for place in places), "copied for each row"
    assert memory.tokens == 5 * 256
    slabs.expect([1] * 3)
    assert memory.tokens == 8 * 256
    keys = places[0].slab.keys[0]
    slabs.take(1)
    slabs.expect([1] * 20)
    assert memory.tokens == 8 * 256, "no more than there may be"
    assert places[0].slab.keys[0] is keys, "rows that find no room now copy nothing"


def test_rows_are_taken_one_by_one_where_there_is_not_the_memory_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = LayerShape(key_heads=1, key_size=2, value_heads=1, value_size=2)
    slabs = Slabs(KvMemory(KvLayout(layers=(shape,), dtype=torch.float32), 8 * 256))
    resize = Slab.resize

    def short(slab: Slab, room: int) -> None:
        if room > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        resize(slab, room)

    monkeypatch.setattr(Slab, "resize", short)
    slabs.expect([200] * 5)
    slabs.take(200)
    slabs.take(200)
    with pytest.raises(RuntimeError, match="can't allocate"):
        slabs.take(200)
