from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.sandboxes.local import SubprocessBackend


@pytest.fixture
def walled(root: Path) -> BubblewrapBackend:
    """Where an attack must fail."""
    return BubblewrapBackend(root=str(root))


@pytest.fixture
def plain(root: Path) -> Iterator[SubprocessBackend]:
    """Where it has to succeed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield SubprocessBackend(root=f"{root}-plain")
