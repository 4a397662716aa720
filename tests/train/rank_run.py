"""A run for ``torchrun`` and ``accelerate launch``: python rank_run.py FOLDER OUT [JSON of changes]"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors.torch import save_file
from transformers import TrainerCallback

from longrein.engines.base import AdapterSpec
from longrein.errors import EngineError
from longrein.train.checkpoint import last_checkpoint
from longrein.train.grpo_config import AsyncGRPOConfig
from longrein.train.merged_folder import save_merged
from longrein.train.trainer import AsyncGRPOTrainer
from longrein.types import Call
from tests.traces import call
from tests.train.toy import Recorder, Script, group

PROMPT = list(range(5, 25))


class Dies(TrainerCallback):
    """Ends its process at the beginning of a step, without a word."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        if state.global_step == self._step:
            os._exit(3)


class Stops(TrainerCallback):
    """Ends the run after a step, on its own rank."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        control.should_training_stop |= state.global_step == self._step


class Refuses(Recorder):
    """An engine that goes away after a version."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._after = after

    def update(self, tensors: Any, policy_version: int) -> None:
        if policy_version > self._after:
            raise EngineError("the engine is gone")
        super().update(tensors, policy_version)


class Run(Script):
    """Groups by their number, also in a run that goes on."""

    def __init__(self, dies: str) -> None:
        super().__init__(_group if not dies else [_group(0)], dies=dies)

    def resume(self, taken: Any, policy_version: int, /) -> None:
        self._made = len(taken)

    def get(self, *, timeout: float) -> Any:
        if self._dies and self._made == 1:
            self.check_health()
        return super().get(timeout=timeout)


class AdapterRecorder(Recorder):
    """Keeps what an engine would sample with, of adapters that it adds to the base it was sent."""

    def update(self, tensors: Any, policy_version: int) -> None:
        self._base = {name: tensor.clone() for name, tensor in tensors.items()}
        super().update(tensors, policy_version)

    def update_adapter(self, tensors: Any, spec: AdapterSpec, policy_version: int) -> None:
        weights = {name: tensor.clone() for name, tensor in self._base.items()}
        for module, target in spec.targets.items():
            a, b = tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"]
            weights[f"{module}.weight"] += target.scaling * (b @ a)
        super().update(weights, policy_version)


def _group(number: int) -> Any:
    def calls(index: int) -> list[Call]:
        ids = [30 + (index + number) % 7, 40, 50 + index, 60 + number, 2]
        return [call(0, None, PROMPT, ids, min_policy_version=number, max_policy_version=number)]

    return group(f"g{number}", [0.0, 1.0, 0.5, 0.25], calls)


def main(folder: str, out: str, changes: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dies_rank, dies_step = changes.pop("dies", (None, None))
    worker_dies = changes.pop("worker_dies", "")
    takes_adapters = changes.pop("takes_adapters", False)
    lora = changes.pop("lora", None)
    refuses_after = changes.pop("refuses_after", None)
    stops_rank, stops_step = changes.pop("stops", (None, None))
    own_dirs = changes.pop("own_dirs", False)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    args = AsyncGRPOConfig(
        **{
            "output_dir": out,
            "use_cpu": True,
            "save_strategy": "no",
            "learning_rate": 1e-3,
            "lr_scheduler_type": "linear",
            "max_steps": 4,
            "num_generations": 4,
            "per_device_train_batch_size": 4 // world,
            "max_staleness": 4,
            **changes,
        }
    )
    first = args.process_index == 0
    if own_dirs:
        out = args.output_dir = f"{out}/{args.process_index}"
    callbacks: list[TrainerCallback] = [Dies(dies_step)] if args.process_index == dies_rank else []
    callbacks += [Stops(stops_step)] if args.process_index == stops_rank else []
    worker = Run(worker_dies)
    receiver = AdapterRecorder() if takes_adapters else Recorder()
    if refuses_after is not None:
        receiver = Refuses(refuses_after)
    made = AsyncGRPOTrainer(
        model=folder,
        args=args,
        rollout_worker=worker if first else None,
        weight_receiver=receiver if first else None,
        peft_config=LoraConfig(**lora) if lora else None,
        callbacks=callbacks,
    )
    try:
        made.train(resume_from_checkpoint=last_checkpoint(Path(out)) is not None)
    finally:
        if first:
            (Path(out) / "stopped").write_text(str(worker.stopped))
    save_merged(made, Path(out) / "final")
    if first:
        save_file(receiver.sent[-1], Path(out) / "sent.safetensors")
        lines = [line for line in made.state.log_history if "loss" in line]
        (Path(out) / "lines.json").write_text(json.dumps({"lines": lines, "versions": receiver.versions}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})
