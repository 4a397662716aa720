"""RMS norm of a few rows: the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numba.np.numpy_support import carray

from longrein.engines.local.kernels.lanes import LOOP, as_in, pointer, wide


@njit(**LOOP)
def _norm(rows: Any, weight: Any, epsilon: Any, normed: Any) -> None:
    for row in range(rows.shape[0]):
        squares = np.float32(0)
        for i in range(weight.size):
            number = wide(rows[row, i])
            squares += number * number
        mean: Any = squares / np.float32(weight.size)
        scale = np.float32(1) / np.sqrt(mean + np.float32(epsilon))
        for i in range(weight.size):
            normed[row, i] = as_in(normed, wide(rows[row, i]) * scale * wide(weight[i]))


@njit(**LOOP)
def _norm_at(rows: Any, weight: Any, normed: Any, count: Any, size: Any, epsilon: Any, like: Any) -> None:
    of = carray(pointer(rows), (count, size), like.dtype)
    by = carray(pointer(weight), (size,), like.dtype)
    _norm(of, by, epsilon, carray(pointer(normed), (count, size), like.dtype))


def norm_of(like: Any, sources: int) -> Callable[..., None]:
    """``count`` rows of ``size`` at the address ``rows`` into ``normed``; see :func:`.attention.attend_of`."""

    def norm(rows: Any, weight: Any, normed: Any, count: Any, size: Any, epsilon: Any) -> None:
        if sources:
            _norm_at(rows, weight, normed, count, size, epsilon, like)

    return norm
