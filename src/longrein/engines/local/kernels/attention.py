"""One new token's attention over the keys and values of its row, for several rows: the loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import extending, njit, types
from numba.np.numpy_support import carray

from longrein.engines.local.kernels.lanes import LOOP, as_in, exp, pointer, wide
from longrein.engines.local.kernels.sixteen import ELEMENTS, TOKENS, dots, fetch, lane, mix

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

AHEAD_BYTES = 4096
"""How far ahead keys and values are asked for, since what the processor guesses comes too late. 2 to 8 KB are alike."""


class _Scratch(NamedTuple):
    """float32 arrays of one thread. A group is the query heads that share a key head."""

    queries: Any
    """(group, size); what is mixed takes their place."""
    lanes: Any
    """The same in lanes."""
    scores: Any
    """(group, capacity)."""
    rest: Any
    """(16): the scores of the last values."""


@extending.register_jitable
def scratch_floats(group: int, size: int, capacity: int) -> int:
    """float32 numbers of scratch that each thread needs."""
    return group * (2 * size + capacity) + TOKENS


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
def _fetch_ahead(address: int, size_bytes: int) -> None:
    """Ask for as many bytes as are read now, from further on."""
    for at in range(0, size_bytes, 64):
        fetch(address + AHEAD_BYTES + at)


@njit(**LOOP)
def _score_group(like: Any, scratch: Any, keys: Any, length: int, scale: Any) -> None:
    """Sixteen keys at a time for all queries, so that they come from memory once."""
    queries, lanes, scores, _ = scratch
    size, key_bytes = keys.shape[1], keys.shape[1] * like.itemsize
    if size % ELEMENTS or length < TOKENS:
        for member in range(queries.shape[0]):
            _scores(queries[member], keys, length, scale, scores[member])
        return
    for member in range(queries.shape[0]):
        for i in range(size):
            lanes[member, lane(like, i)] = queries[member, i]
    for block in range(0, length, TOKENS):
        # The last ones again, rather than some that are not there.
        at = min(block, length - TOKENS)
        _fetch_ahead(keys.ctypes.data + at * key_bytes, TOKENS * key_bytes)
        for member in range(queries.shape[0]):
            query, to = lanes.ctypes.data + member * size * 4, scores.ctypes.data + (member * scores.shape[1] + at) * 4
            dots(like, query, keys.ctypes.data + at * key_bytes, size, scale, to)


@njit(**LOOP)
def _mix_group(like: Any, scratch: Any, values: Any, length: int) -> None:
    """The same for values."""
    mixed, lanes, scores, rest = scratch
    size, value_bytes = values.shape[1], values.shape[1] * like.itemsize
    if size % ELEMENTS or length < TOKENS:
        for member in range(mixed.shape[0]):
            _mix(scores[member], values, length, mixed[member])
        return
    lanes[:] = np.float32(0)
    for at in range(0, length - TOKENS + 1, TOKENS):
        _fetch_ahead(values.ctypes.data + at * value_bytes, TOKENS * value_bytes)
        for member in range(mixed.shape[0]):
            weights = scores.ctypes.data + (member * scores.shape[1] + at) * 4
            mix(like, weights, values.ctypes.data + at * value_bytes, size, lanes.ctypes.data + member * size * 4)
    left = length % TOKENS
    for member in range(mixed.shape[0]):
        # The last sixteen, those again that are mixed already as nothing.
        rest[:] = np.float32(0)
        for at in range(length - left, length):
            rest[at - (length - TOKENS)] = scores[member, at]
        last = values.ctypes.data + (length - TOKENS) * value_bytes
        mix(like, rest.ctypes.data, last, size, lanes.ctypes.data + member * size * 4)
        for i in range(size):
            mixed[member, i] = lanes[member, lane(like, i)]


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
    thread = omp_get_thread_num()
    scratch = _scratch_of(block, thread)
    queries = scratch.queries
    scale = np.float32(block.scale)
    for item in range(thread, rows * heads, block.threads):
        row, head = item // heads, item % heads
        position: Any = positions[row]
        keys, values = kept_keys[row, head], kept_values[row, head]
        first = (heads * group + head) * size
        _turn(turning[row, first : first + size], cosines[row], sines[row], queries[0])
        for i in range(size):
            keys[position, i] = as_in(keys, queries[0, i])
            values[position, i] = new_values[row, head * size + i]
        for member in range(group):
            first = (head * group + member) * size
            _turn(turning[row, first : first + size], cosines[row], sines[row], queries[member])
            for i in range(size):
                # Queries are rounded as keys are.
                queries[member, i] = wide(as_in(keys, queries[member, i]))
        _score_group(like, scratch, keys, position + 1, scale)
        for member in range(group):
            _softmax(scratch.scores[member], position + 1)
        _mix_group(like, scratch, values, position + 1)
        for member in range(group):
            for i in range(size):
                seen[row, head * group + member, i] = as_in(keys, queries[member, i])


@njit(**LOOP)
def _scratch_of(block: Any, thread: int) -> Any:
    group, size, capacity = block.group, block.size, block.capacity
    floats = scratch_floats(group, size, capacity)
    own = carray(pointer(block.scratch), (block.threads, floats), np.float32)[thread]
    heads = group * size
    return _Scratch(
        own[:heads].reshape((group, size)),
        own[heads : 2 * heads].reshape((group, size)),
        own[2 * heads : 2 * heads + group * capacity].reshape((group, capacity)),
        own[2 * heads + group * capacity :],
    )


def attend_of(like: Any, sources: int) -> Callable[[Any], None]:
    """``_attend`` of the block at an address, with elements as in the array ``like``.

    ``sources`` stands for all code that it is made of: numba's cache knows it by what it closes over, see
    :mod:`.compiled`.
    """

    def attend(address: Any) -> None:
        if sources:
            _attend(carray(pointer(address), (1,), BLOCK)[0], like)

    return attend
