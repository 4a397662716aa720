"""Our loops as C functions: compiled for this CPU once, then found in numba's cache."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np
import torch
from numba import cfunc, types

from longrein.engines.local.kernels.attention import attend_of
from longrein.engines.local.kernels.lanes import LOOP
from longrein.engines.local.kernels.norm import norm_of
from longrein.engines.local.kernels.team import the_team

_LIKE = {torch.bfloat16: np.empty(0, np.uint16), torch.float32: np.empty(0, np.float32)}
_NORM_TYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2, ctypes.c_double)

DTYPES = tuple(_LIKE)


def digest_of(folder: Path) -> int:
    """Of the code in a folder; not 0."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.py")):
        digest.update(file.read_bytes())
    return int.from_bytes(digest.digest()[:7]) or 1


_SOURCES = digest_of(Path(__file__).parent)
"""numba's cache looks only at the date of the file that a loop stands in."""


@lru_cache
def attend_loop(dtype: torch.dtype) -> Any:
    """``void (void *block)``: the attention of decoded rows; its address is ``.address``."""
    symbols: Any = llvmlite.binding
    symbols.add_symbol("omp_get_thread_num", the_team().thread_number)
    return compiled(attend_of(_LIKE[dtype], _SOURCES), types.void(types.intp))


@lru_cache
def norm_loop(dtype: torch.dtype) -> Any:
    """``void (rows, weight, normed, count, size, epsilon)``."""
    address = types.intp
    signature = types.void(address, address, address, types.int64, types.int64, types.float64)
    loop = compiled(norm_of(_LIKE[dtype], _SOURCES), signature)
    call: Any = _NORM_TYPE(loop.address)
    # The code lives as long as numba's object does.
    call.compiled = loop
    return call


def compiled(loop: Callable[..., None], signature: Any) -> Any:
    """A loop as numba's C function, from its cache if it is there."""
    try:
        return cfunc(signature, cache=True, **LOOP)(loop)
    except RuntimeError:
        # No folder to cache in can be written to.
        return cfunc(signature, **LOOP)(loop)
