"""One new token's attention over the keys and values of its row, for several rows: the loops."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.np.numpy_support import carray

from longrein.engines.local.kernels.lanes import LOOP, as_in, exp, pointer, wide

BLOCK = np.dtype(
    [
        ("rows", np.int64),
        ("key_heads", np.int64),
        ("group", np.int64),
        ("size", np.int64),
        ("capacity", np.int64),
        ("scale", np.float64),
        ("threads", np.int64),
        ("positions", np.int64),
        ("cosines", np.int64),
        ("sines", np.int64),
        ("scratch", np.int64),
        ("turning", np.int64),
        ("turning_step", np.int64),
        ("values", np.int64),
        ("values_step", np.int64),
        ("kept_keys", np.int64),
        ("kept_values", np.int64),
        ("seen", np.int64),
    ],
    align=True,
)
"""What the loops are given: query heads to a key head (``group``), elements of a head (``size``), tokens that a row has
room for (``capacity``); then addresses, and of two arrays the elements from one row to the next (``step``)."""

SCRATCH_HEADS = 2
"""Heads beyond a row's capacity that a thread needs of float32 scratch."""

omp_get_thread_num = types.ExternalFunction("omp_get_thread_num", types.int32())


@njit(**LOOP)
def _turn(head: Any, cosines: Any, sines: Any, turned: Any) -> None:
    """Rotary positions; the sines of the first half are negated."""
    half = head.size // 2
    for i in range(half):
        first, second = wide(head[i]), wide(head[i + half])
        turned[i] = first * wide(cosines[i]) + second * wide(sines[i])
        turned[i + half] = second * wide(cosines[i + half]) + first * wide(sines[i + half])


@njit(**LOOP)
def _scores(query: Any, keys: Any, length: int, scale: Any, scores: Any) -> None:
    # Four keys at a time: their sums are independent of each other.
    whole = length - length % 4
    for at in range(0, whole, 4):
        a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for i in range(query.size):
            q = query[i]
            a += q * wide(keys[at, i])
            b += q * wide(keys[at + 1, i])
            c += q * wide(keys[at + 2, i])
            d += q * wide(keys[at + 3, i])
        scores[at], scores[at + 1], scores[at + 2], scores[at + 3] = a * scale, b * scale, c * scale, d * scale
    for at in range(whole, length):
        a = np.float32(0)
        for i in range(query.size):
            a += query[i] * wide(keys[at, i])
        scores[at] = a * scale


@njit(**LOOP)
def _softmax(scores: Any, length: int) -> None:
    largest = np.float32(-np.inf)
    for at in range(length):
        # NaN is never the larger one here, and reaches the sum.
        largest = max(largest, scores[at])
    total = np.float32(0)
    for at in range(length):
        scores[at] = exp(scores[at] - largest)
        total += scores[at]
    share = np.float32(1) / total
    for at in range(length):
        scores[at] *= share


@njit(**LOOP)
def _mix(weights: Any, values: Any, length: int, mixed: Any) -> None:
    # Eight values at a time: the sum so far is read and written once for them.
    mixed[:] = np.float32(0)
    whole = length - length % 8
    for at in range(0, whole, 8):
        a, b, c, d = weights[at], weights[at + 1], weights[at + 2], weights[at + 3]
        e, f, g, h = weights[at + 4], weights[at + 5], weights[at + 6], weights[at + 7]
        for i in range(mixed.size):
            mixed[i] += (
                a * wide(values[at, i])
                + b * wide(values[at + 1, i])
                + c * wide(values[at + 2, i])
                + d * wide(values[at + 3, i])
                + e * wide(values[at + 4, i])
                + f * wide(values[at + 5, i])
                + g * wide(values[at + 6, i])
                + h * wide(values[at + 7, i])
            )
    for at in range(whole, length):
        for i in range(mixed.size):
            mixed[i] += weights[at] * wide(values[at, i])


@njit(**LOOP)
def _head(query: Any, keys: Any, values: Any, length: int, scale: Any, scores: Any, mixed: Any) -> None:
    _scores(query, keys, length, scale, scores)
    _softmax(scores, length)
    _mix(scores, values, length, mixed)


@njit(**LOOP)
def _attend(block: Any, like: Any) -> None:
    """The share of one thread: every ``threads``-th pair of a row and a key head. ``like`` is of the elements' type."""
    rows, heads, group, size = block.rows, block.key_heads, block.group, block.size
    turning = carray(pointer(block.turning), (rows, block.turning_step), like.dtype)
    new_values = carray(pointer(block.values), (rows, block.values_step), like.dtype)
    cosines = carray(pointer(block.cosines), (rows, size), like.dtype)
    sines = carray(pointer(block.sines), (rows, size), like.dtype)
    kept_keys = carray(pointer(block.kept_keys), (rows, heads, block.capacity, size), like.dtype)
    kept_values = carray(pointer(block.kept_values), (rows, heads, block.capacity, size), like.dtype)
    seen = carray(pointer(block.seen), (rows, heads * group, size), like.dtype)
    positions = carray(pointer(block.positions), (rows,), np.int64)
    needed = block.capacity + SCRATCH_HEADS * size
    thread = omp_get_thread_num()
    scratch = carray(pointer(block.scratch), (block.threads, needed), np.float32)[thread]
    query, mixed, scores = scratch[:size], scratch[size : 2 * size], scratch[2 * size :]
    scale = np.float32(block.scale)
    for item in range(thread, rows * heads, block.threads):
        row, head = item // heads, item % heads
        position: Any = positions[row]
        keys, values = kept_keys[row, head], kept_values[row, head]
        first = (heads * group + head) * size
        _turn(turning[row, first : first + size], cosines[row], sines[row], query)
        for i in range(size):
            keys[position, i] = as_in(keys, query[i])
            values[position, i] = new_values[row, head * size + i]
        for member in range(head * group, (head + 1) * group):
            _turn(turning[row, member * size : (member + 1) * size], cosines[row], sines[row], query)
            for i in range(size):
                # Queries are rounded as keys are.
                query[i] = wide(as_in(keys, query[i]))
            _head(query, keys, values, position + 1, scale, scores, mixed)
            for i in range(size):
                seen[row, member, i] = as_in(keys, mixed[i])


def attend_bfloat16(address: Any) -> None:
    """``_attend`` of the block at an address, in bfloat16."""
    _attend(carray(pointer(address), (1,), BLOCK)[0], np.empty(0, np.uint16))


def attend_float32(address: Any) -> None:
    """``_attend`` of the block at an address, in float32."""
    _attend(carray(pointer(address), (1,), BLOCK)[0], np.empty(0, np.float32))
