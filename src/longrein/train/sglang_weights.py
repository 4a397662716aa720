"""Whole weights to an SGLang server, by a folder that both see."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from torch import Tensor

from longrein.engines.sglang_control import SglangControl
from longrein.errors import EngineError
from longrein.train.vllm.folder import drop_others, write_tensors


class SglangWeights:
    """A :class:`~longrein.engines.base.WeightReceiver`: each version is a folder that the server loads.

    Args:
        control: the server.
        folder: where versions are written; the server must see it under the same path.
    """

    def __init__(self, control: SglangControl, folder: Path) -> None:
        self._control = control
        self._folder = folder
        self._policy_version = 0

    def update(self, tensors: object, policy_version: int) -> None:
        """See :class:`~longrein.engines.base.WeightReceiver`."""
        if policy_version < self._policy_version:
            raise EngineError(f"policy version {policy_version} is older than the server's {self._policy_version}")
        written = write_tensors(cast(Mapping[str, Tensor], tensors), self._folder / f"v{policy_version}")
        self._control.take(written, policy_version)
        self._policy_version = policy_version
        drop_others(self._folder, written)

    def close(self) -> None:
        """Remove what was written, and close connections."""
        self._control.close()
        shutil.rmtree(self._folder, ignore_errors=True)
