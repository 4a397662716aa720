"""Sixteen keys or values at a time, in vectors: the inner loops of attention, as LLVM instructions for any CPU.

The compiler does not find these by itself, since a head is too short for it: it sums each key's products on its own.
Here the sums of sixteen keys are folded together. bfloat16 is widened in pairs, so float32 arrays that meet it are in
*lanes*: of every 32 elements the even ones, then the odd ones. Beside float32 elements they are as they are.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import extending, njit, types
from numba.core import cgutils

from longrein.engines.local.kernels.lanes import LOOP

TOKENS = 16
"""Keys or values at a time."""
ELEMENTS = 32
"""Of a head at a time: head sizes must be multiples of it."""

_FLAGS = ("reassoc", "contract", "nsz", "arcp")
_INT32 = ir.IntType(32)
_FLOAT = ir.FloatType()
_FLOATS = ir.VectorType(_FLOAT, 16)
_INTS = ir.VectorType(_INT32, 16)
_FLOAT_BYTES = 4

# These have no types.
_intrinsic: Any = extending.intrinsic
_build: Any = cgutils
_ir: Any = ir


@_intrinsic
def dots(_context: Any, like: Any, query: Any, keys: Any, size: Any, scale: Any, scores: Any) -> Any:
    """``scores[k] = scale * sum(query * keys[k])`` of 16 keys. ``like``: an array of the keys' type; then addresses of
    the query (float32, in lanes), of the keys (one after the other) and of the scores, and the ``size`` of a head."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        _like, query, keys, size, scale, scores = arguments
        sums = [_build.alloca_once_value(builder, ir.Constant(_FLOATS, None)) for _ in range(TOKENS)]
        with _parts(builder, size) as part:
            halves = [_floats(builder, query, part, half) for half in (0, 1)]
            for token, total in enumerate(sums):
                for half, element in zip(halves, _elements(builder, like.dtype, keys, size, token, part), strict=True):
                    builder.store(_add_product(builder, half, element, builder.load(total)), total)
        folded = _fold(builder, [builder.load(total) for total in sums])
        _store(builder, builder.fmul(folded, _splat(builder, scale), flags=_FLAGS), scores, 0)
        return context.get_dummy_value()

    return types.void(like, query, keys, size, scale, scores), generate


@_intrinsic
def mix(_context: Any, like: Any, weights: Any, values: Any, size: Any, mixed: Any) -> Any:
    """``mixed += sum(weights[k] * values[k])`` of 16 values; arguments as of :func:`dots`, ``mixed`` in lanes."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        _like, weights, values, size, mixed = arguments
        weight = [_splat(builder, _load(builder, _FLOAT, weights, token * _FLOAT_BYTES)) for token in range(TOKENS)]
        with _parts(builder, size) as part:
            # Two sums of each half, so that they wait less for each other.
            even = [_floats(builder, mixed, part, half) for half in (0, 1)]
            odd: list[Any] = [ir.Constant(_FLOATS, None)] * 2
            for token in range(TOKENS):
                sums = odd if token % 2 else even
                for half, element in enumerate(_elements(builder, like.dtype, values, size, token, part)):
                    sums[half] = _add_product(builder, weight[token], element, sums[half])
            for half in (0, 1):
                total = builder.fadd(even[half], odd[half], flags=_FLAGS)
                _store(builder, total, _offset(builder, mixed, part, ELEMENTS * _FLOAT_BYTES), half * 64)
        return context.get_dummy_value()

    return types.void(like, weights, values, size, mixed), generate


@_intrinsic
def fetch(_context: Any, address: Any) -> Any:
    """Ask for the cache line at an address, which may be anywhere: nothing waits for it."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], _build.voidptr_t)
        # To read, to be used soon, of data.
        words = [_INT32(0), _INT32(3), _INT32(1)]
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch.p0", (), ir.FunctionType(ir.VoidType(), [_build.voidptr_t, _INT32, _INT32, _INT32])
        )
        builder.call(prefetch, [place, *words])
        return context.get_dummy_value()

    return types.void(address), generate


@njit(**LOOP)
def lane(like: Any, i: int) -> int:
    """Where element ``i`` of a head is, in lanes."""
    if like.itemsize == 4:
        return i
    return i // ELEMENTS * ELEMENTS + i % 2 * TOKENS + i % ELEMENTS // 2


@contextmanager
def _parts(builder: Any, size: Any) -> Generator[Any, None, None]:
    """A loop over a head's parts of 32 elements."""
    with _build.for_range(builder, builder.udiv(size, size.type(ELEMENTS))) as loop:
        yield loop.index


def _elements(builder: Any, dtype: Any, heads: Any, size: Any, token: int, part: Any) -> Sequence[Any]:
    """One part of a token's head as two vectors of float32: in lanes."""
    element_bytes = 2 if dtype == types.uint16 else 4
    at = builder.add(builder.mul(size, size.type(token)), builder.mul(part, size.type(ELEMENTS)))
    start = builder.add(heads, builder.mul(at, size.type(element_bytes)))
    if dtype != types.uint16:
        return [_load(builder, _FLOATS, start, half * 64) for half in (0, 1)]
    pairs = _load(builder, _INTS, start, 0, align=2)
    low = builder.shl(pairs, ir.Constant(_INTS, [16] * 16))
    high = builder.and_(pairs, ir.Constant(_INTS, [0xFFFF0000] * 16))
    return [builder.bitcast(half, _FLOATS) for half in (low, high)]


def _fold(builder: Any, rows: list[Any]) -> Any:
    """The sum of each of sixteen vectors, as one vector: pairs of them are added crosswise, four times."""
    # Within 128 bits first, which is cheapest, then across.
    for masks in (_within(0, 1, 2, 3), _within(0, 2, 1, 3), _ACROSS, _ACROSS):
        rows = [_add_crosswise(builder, a, b, masks) for a, b in zip(rows[::2], rows[1::2], strict=True)]
    return rows[0]


def _within(a: int, b: int, c: int, d: int) -> tuple[list[int], list[int]]:
    lows = [four + i for four in range(0, 16, 4) for i in (a, b, 16 + a, 16 + b)]
    highs = [four + i for four in range(0, 16, 4) for i in (c, d, 16 + c, 16 + d)]
    return lows, highs


_ACROSS = (
    [*range(4), *range(8, 12), *range(16, 20), *range(24, 28)],
    [*range(4, 8), *range(12, 16), *range(20, 24), *range(28, 32)],
)


def _add_crosswise(builder: Any, a: Any, b: Any, masks: tuple[list[int], list[int]]) -> Any:
    vector = ir.VectorType(_INT32, 16)
    lows, highs = (builder.shuffle_vector(a, b, ir.Constant(vector, mask)) for mask in masks)
    return builder.fadd(lows, highs, flags=_FLAGS)


def _add_product(builder: Any, a: Any, b: Any, total: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=_FLAGS), total, flags=_FLAGS)


def _floats(builder: Any, heads: Any, part: Any, half: int) -> Any:
    return _load(builder, _FLOATS, _offset(builder, heads, part, ELEMENTS * _FLOAT_BYTES), half * 64)


def _offset(builder: Any, address: Any, count: Any, each: int) -> Any:
    return builder.add(address, builder.mul(count, address.type(each)))


def _load(builder: Any, what: Any, address: Any, offset: int, align: int = _FLOAT_BYTES) -> Any:
    place = builder.inttoptr(builder.add(address, address.type(offset)), what.as_pointer())
    return builder.load(place, align=align)


def _store(builder: Any, vector: Any, address: Any, offset: int) -> None:
    place = builder.inttoptr(builder.add(address, address.type(offset)), _FLOATS.as_pointer())
    builder.store(vector, place, align=_FLOAT_BYTES)


def _splat(builder: Any, number: Any) -> Any:
    undefined = ir.Constant(_FLOATS, _ir.Undefined)
    first = builder.insert_element(undefined, number, _INT32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_INTS, [0] * 16))
