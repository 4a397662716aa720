"""With rollouts made ahead, a resumed run is another run; it learns as well as one in one piece."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longrein.train.trainer import AsyncGRPOTrainer
from longrein.types import RolloutGroup
from tests import tiny
from tests.train.continued import StopAt, arguments, even_share
from tests.train.toy import Sampler

STEPS = 14
SEEDS = range(6)
T_95 = 2.571
"""Student's t for five degrees of freedom, both sides."""


class Ahead(Sampler):
    """Makes each group while the one before it is in training, so it is one version behind; what waits dies with it."""

    def __init__(self, folder: str, seed: int) -> None:
        super().__init__(folder, even_share, num_generations=8, length=4)
        self._generator.manual_seed(seed)
        self._seed = seed
        self._waiting: list[RolloutGroup] = []

    def resume(self, taken: Collection[str], policy_version: int, /) -> None:
        self._made = len(taken)
        self._generator.manual_seed(self._seed + 1000 * policy_version)

    def get(self, *, timeout: float) -> RolloutGroup:
        group = self._waiting.pop() if self._waiting else super().get(timeout=timeout)
        self._waiting.append(super().get(timeout=timeout))
        return group


def rewards(folder: Path, out: Path, seed: int, *, stop: int) -> list[float]:
    """Of every step; ``stop`` beyond the last is a run in one piece."""
    lines: list[dict[str, Any]] = []
    for resume in (False, True)[: 1 + (stop < STEPS)]:
        worker = Ahead(str(folder), seed)
        made = AsyncGRPOTrainer(
            model=str(folder),
            args=arguments(
                out,
                max_steps=STEPS,
                max_staleness=1,
                num_generations=8,
                per_device_train_batch_size=8,
                lr_scheduler_type="constant",
                save_total_limit=1,
                seed=seed,
            ),
            rollout_worker=worker,
            weight_receiver=worker,
            callbacks=[] if resume else [StopAt(stop)],
        )
        try:
            made.train(resume_from_checkpoint=resume)
        except InterruptedError:
            assert not resume
        lines = made.state.log_history
    assert max(line["staleness_max"] for line in lines if "staleness_max" in line) == 1
    return [line["reward"] for line in lines if "reward" in line]


@pytest.mark.agents
def test_the_curves_agree_within_their_confidence_intervals(tmp_path: Path) -> None:
    folder = tiny.save_model(tmp_path / "model", hidden_size=32, intermediate_size=64)
    whole = np.array([rewards(folder, tmp_path / f"w{seed}", seed, stop=STEPS) for seed in SEEDS])
    resumed = np.array([rewards(folder, tmp_path / f"r{seed}", seed, stop=5) for seed in SEEDS])
    assert whole.shape == resumed.shape == (len(SEEDS), STEPS)
    late = slice(STEPS - 4, None)
    differences = resumed[:, late].mean(1) - whole[:, late].mean(1)
    half = T_95 * differences.std(ddof=1) / np.sqrt(len(SEEDS))
    assert abs(differences.mean()) <= half
    for curves in (whole, resumed):
        gains = curves[:, late].mean(1) - curves[:, :4].mean(1)
        assert gains.mean() > T_95 * gains.std(ddof=1) / np.sqrt(len(SEEDS)), "both learn"
    # A run that went on from the first weights would show it here.
    after = resumed[:, 5:8].mean() - whole[:, 5:8].mean()
    assert abs(after) < 0.5 * (whole[:, late].mean() - whole[:, :2].mean())
