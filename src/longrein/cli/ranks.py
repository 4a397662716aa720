"""``longrein train`` on several ranks: rank 0 runs the run, the others follow it wherever something trains."""

from __future__ import annotations

from pathlib import Path

from accelerate import PartialState

from longrein.cli.grpo import grpo_trainer
from longrein.cli.phases import Ended, GrpoPhase, Phase, SftPhase, launched_count
from longrein.cli.warm_start import train_rows
from longrein.config import RunConfig
from longrein.errors import ConfigError
from longrein.train.elsewhere import WorkerElsewhere
from longrein.train.merged_folder import save_merged
from longrein.train.ranks import OneRank, Ranks, ranks_here
from longrein.train.sharded import WeightsElsewhere


def launched_ranks() -> Ranks:
    """Those that ``torchrun`` or ``accelerate launch`` started; one without them."""
    if launched_count() == 1:
        return OneRank()
    PartialState(cpu=True)
    return ranks_here()


def check_divides(config: RunConfig, ranks: Ranks) -> None:
    """See that every rank can have the same share of each step.

    Raises:
        ConfigError: the rollouts of a step do not divide.
    """
    steps = {
        "train.groups_per_step * rollout.num_generations": config.train.groups_per_step
        * config.rollout.num_generations,
        "sft.batch_size": config.sft.batch_size if config.sft.steps else 0,
    }
    for key, rollouts in steps.items():
        if rollouts % ranks.count:
            raise ConfigError(f"{key} is {rollouts}, which {ranks.count} ranks cannot share; launch another number")


def follow(config: RunConfig, ranks: Ranks) -> int:
    """Train whatever rank 0 trains, until it ends."""
    while True:
        match ranks.from_first(_NOTHING):
            case SftPhase() as phase:
                train_rows(config, phase.rows, Path(phase.folder), [])
            case GrpoPhase() as phase:
                trainer = grpo_trainer(config, phase.start_model, WorkerElsewhere(), WeightsElsewhere(), [])
                trainer.train(resume_from_checkpoint=phase.checkpoint or None)
                save_merged(trainer, Path(phase.folder))
            case Ended():
                return 0


_NOTHING: Phase = Ended()
