"""Our loops as C functions: compiled for this CPU once, then found in numba's cache."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import llvmlite.binding
import torch
from numba import cfunc, types

from longrein.engines.local.kernels.attention import attend_bfloat16, attend_float32
from longrein.engines.local.kernels.lanes import LOOP
from longrein.engines.local.kernels.norm import norm_bfloat16, norm_float32
from longrein.engines.local.kernels.team import the_team

_ATTEND = {torch.bfloat16: attend_bfloat16, torch.float32: attend_float32}
_NORM = {torch.bfloat16: norm_bfloat16, torch.float32: norm_float32}
_NORM_TYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2, ctypes.c_double)

DTYPES = tuple(_ATTEND)


@lru_cache
def attend_loop(dtype: torch.dtype) -> Any:
    """``void (void *block)``: the attention of decoded rows; its address is ``.address``."""
    symbols: Any = llvmlite.binding
    symbols.add_symbol("omp_get_thread_num", the_team().thread_number)
    return _compiled(_ATTEND[dtype], types.void(types.intp))


@lru_cache
def norm_loop(dtype: torch.dtype) -> Any:
    """``void (rows, weight, normed, count, size, epsilon)``."""
    address = types.intp
    signature = types.void(address, address, address, types.int64, types.int64, types.float64)
    loop = _compiled(_NORM[dtype], signature)
    call: Any = _NORM_TYPE(loop.address)
    # The code lives as long as numba's object does.
    call.compiled = loop
    return call


def _compiled(loop: Callable[..., None], signature: Any) -> Any:
    try:
        return cfunc(signature, cache=True, **LOOP)(loop)
    except RuntimeError:
        # No folder to cache in can be written to.
        return cfunc(signature, **LOOP)(loop)
