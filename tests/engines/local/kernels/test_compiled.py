"""Loops from numba's cache are those that were compiled, to the last bit, and of today's code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from numba import types

from longrein.engines.local.kernels.compiled import compiled, digest_of
from longrein.engines.local.kernels.norm import norm_of

REPO = Path(__file__).parents[4]
SIGNATURE = types.void(*[types.intp] * 3, types.int64, types.int64, types.float64)
COMPUTE = """
import torch
from longrein.engines.local.kernels.parts import CompiledNorm
from tests.engines.local.kernels.inputs import compiled, filled_slab, heads_and_turns

torch.set_num_threads(1)
for dtype in (torch.float32, torch.bfloat16):
    for length, size in ((9, 32), (100, 32), (100, 16), (70, 64)):
        torch.manual_seed(length)
        slab = filled_slab([length] * 3, 2, size, dtype)
        projected, turns = heads_and_turns(3, 2, 3, size, dtype)
        print(compiled(slab, [length] * 3, turns).run(0, projected).double().numpy().tobytes().hex())
    rows = torch.randn(5, 99).to(dtype)
    print(CompiledNorm(rows[0], 1e-5)(rows).double().numpy().tobytes().hex())
"""


def computed(cache: Path) -> str:
    """By a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", COMPUTE],
        cwd=REPO,
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_who_compiles_computes_what_those_compute_who_find_it_compiled(tmp_path: Path) -> None:
    """Else a run that is resumed would differ from one in one piece."""
    fresh = computed(tmp_path)
    files = sorted(tmp_path.rglob("*.nbc"))
    assert len(files) == 4, "two loops of two dtypes"
    assert fresh == computed(tmp_path)
    assert sorted(tmp_path.rglob("*.nbc")) == files, "the second found all of it"


def test_code_that_changed_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever file it stands in."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    like = np.empty(0, np.float32)
    counts: list[int] = []
    for sources in (1, 1, 2, 1):
        compiled(norm_of(like, sources), SIGNATURE)
        counts.append(len(list(tmp_path.rglob("*.nbc"))))
    assert counts == [1, 1, 2, 2]


def test_every_file_of_the_code_counts(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    digests = {digest_of(tmp_path)}
    (tmp_path / "b.py").write_text("2")
    digests.add(digest_of(tmp_path))
    (tmp_path / "b.py").write_text("3")
    digests.add(digest_of(tmp_path))
    assert len(digests) == 3
    (tmp_path / "notes.txt").write_text("4")
    assert digest_of(tmp_path) in digests
