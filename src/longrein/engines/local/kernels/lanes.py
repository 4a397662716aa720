"""Elements of float32 and bfloat16 arrays, in loops that numba compiles. bfloat16 comes as its bits, uint16."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, njit, types
from numba.core import cgutils

_intrinsic: Any = extending.intrinsic

LOOP: dict[str, Any] = {
    # Sums in any order; NaN and infinities stay what they are.
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
    "error_model": "numpy",
    "boundscheck": False,
    # Each loop is one function: where it called others, the process that compiled it would link to them as they were
    # compiled on their own, later ones to copies optimized within the loop, whose sums have other last bits.
    "forceinline": True,
}
"""How our loops are compiled."""

_LEAST_EXPONENT = np.float32(-87.0)
_INT32 = ir.IntType(32)


@_intrinsic
def wide(_context: Any, element: Any) -> Any:
    """An element as float32."""

    def of_bfloat16(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        bits = builder.shl(builder.zext(arguments[0], _INT32), _INT32(16))
        return builder.bitcast(bits, ir.FloatType())

    def of_float32(_: Any, __: Any, ___: Any, arguments: Any) -> Any:
        return arguments[0]

    return types.float32(element), of_bfloat16 if element == types.uint16 else of_float32


@_intrinsic
def as_in(_context: Any, array: Any, number: Any) -> Any:
    """A float32 as an element of ``array``: to bfloat16 rounded to nearest, ties to even; NaN stays NaN."""

    def to_bfloat16(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        number = arguments[1]
        bits = builder.bitcast(number, _INT32)
        odd = builder.and_(builder.lshr(bits, _INT32(16)), _INT32(1))
        rounded = builder.lshr(builder.add(bits, builder.add(odd, _INT32(0x7FFF))), _INT32(16))
        is_nan = builder.fcmp_unordered("uno", number, number)
        return builder.trunc(builder.select(is_nan, _INT32(0x7FC0), rounded), ir.IntType(16))

    def to_float32(_: Any, __: Any, ___: Any, arguments: Any) -> Any:
        return arguments[1]

    return array.dtype(array, types.float32), to_bfloat16 if array.dtype == types.uint16 else to_float32


@_intrinsic
def _float_of(_context: Any, bits: Any) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@_intrinsic
def pointer(_context: Any, address: Any) -> Any:
    """An address as what ``carray`` takes."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@njit(inline="always")
def exp(number: Any) -> Any:
    """``e ** number`` for numbers up to 0, within 2 ulp; by the polynomial of Cephes' ``expf``."""
    # Written so that NaN stays NaN.
    x = _LEAST_EXPONENT if number < _LEAST_EXPONENT else number
    whole = np.floor(x * np.float32(1.4426950408889634) + np.float32(0.5))
    rest = x - whole * np.float32(0.693359375) + whole * np.float32(2.12194440e-4)
    curve = np.float32(1.9875691500e-4)
    curve = curve * rest + np.float32(1.3981999507e-3)
    curve = curve * rest + np.float32(8.3334519073e-3)
    curve = curve * rest + np.float32(4.1665795894e-2)
    curve = curve * rest + np.float32(1.6666665459e-1)
    curve = curve * rest + np.float32(5.0000001201e-1)
    power = _float_of(np.uint32((np.int32(whole) + np.int32(127)) << np.int32(23)))
    return (curve * rest * rest + rest + np.float32(1.0)) * power
