"""TRL 1.16.0's own ``AsyncGRPOTrainer``, unchanged but for what it lacks on a CPU (``stand_ins``), on our rollouts.

Real agent processes, the embedded engine on a tiny real model, real weights moving. Run by ``make test-trl``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import math
import multiprocessing
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from longrein.engines.base import EngineRequest
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.process import LocalEngineProcess
from longrein.errors import WorkerError
from longrein.harnesses.command import Command
from longrein.integrations.trl import CheckpointRollouts, HarnessRolloutWorker, WeightTransfer, shared_settings
from longrein.integrations.trl.samples import Sample
from longrein.sandboxes.choose import choose_backend
from longrein.sessions.agent import AgentSessionFactory
from longrein.store import read_groups
from longrein.types import Completion, Sampling, Task
from longrein.views import Outcome
from tests import tiny
from tests.integrations.trl.stand_ins import stand_in

pytestmark = [
    pytest.mark.trl,
    pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'"),
    # Its config's base class sets it.
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated"),
]

STEPS = 2
CHECK = {"test.sh": b'echo 0.5 > "${SANDBOX_ROOT:-}/logs/verifier/reward.txt"\n'}
TASKS = [Task(task_id=f"t{n}", prompt=f"good {n}", tests=CHECK) for n in range(4)]
LOWER = set(string.ascii_lowercase)


def lower_case(outcome: Outcome) -> float:
    """A reward that a random model gets unequally: the share of lower-case letters in what it wrote."""
    text = "".join(str(call.reply.get("content") or "") for call in outcome.trace.calls)
    return sum(letter in LOWER for letter in text) / max(len(text), 1)


class Seen(TrainerCallback):
    """What a run logged, and the version that was being trained at each step's end."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "loss" in logs:
            self.lines.append(dict(logs))


class Run(msgspec.Struct):
    """What is left of two steps."""

    folder: Path
    seen: Seen
    samples: list[Sample]
    worker: HarnessRolloutWorker
    trainer: Any
    served: Completion
    prompt: list[int]


def config(folder: Path, **changes: Any) -> Any:
    from trl.experimental.async_grpo import AsyncGRPOConfig

    settings: dict[str, Any] = {
        "output_dir": str(folder / "checkpoints"),
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_steps": STEPS,
        "max_completion_length": 24,
        "max_staleness": 2,
        "learning_rate": 1e-2,
        # TRL asks a vLLM server for its context length otherwise.
        "token_budget": 0,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        **changes,
    }
    return AsyncGRPOConfig(**settings)


def make_trainer(folder: Path, engine: LocalEngineProcess, args: Any, callbacks: list[Any]) -> Any:
    from datasets import Dataset
    from trl.experimental.async_grpo import AsyncGRPOTrainer

    model = str(folder / "start")
    worker = HarnessRolloutWorker(
        harness_session_factory=AgentSessionFactory(
            harness=Command.python_script(str(tiny.DATA / "agents" / "fickle.py")), backend=choose_backend("auto")
        ),
        model_name=model,
        dataset=TASKS,
        engine=engine.spec,
        output_dir=str(folder),
        rollout_reward_fn=lower_case,
        max_inflight_tasks=4,
        context_length=512,
        **shared_settings(args),
    )
    return AsyncGRPOTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": task.prompt} for task in TASKS]),
        processing_class=AutoTokenizer.from_pretrained(model),
        callbacks=[*callbacks, CheckpointRollouts(worker)],
        rollout_worker=worker,
        weight_transfer=WeightTransfer(engine.weights, worker),
    )


def start_engine(folder: Path) -> LocalEngineProcess:
    return LocalEngineProcess(LocalEngineConfig(model=str(folder / "start"), context_length=512))


async def complete(engine: LocalEngineProcess, prompt: list[int]) -> Completion:
    client = await engine.spec.connect()
    try:
        sampling = Sampling(max_tokens=8, temperature=1.0, seed=1)
        ids = np.asarray(prompt, np.int32)
        return await client.generate(
            EngineRequest(request_id="r", conversation_id="c", prompt_ids=ids, sampling=sampling)
        )
    finally:
        await client.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("trl")
    tiny.save_model(folder / "start", "llama")
    torch.set_num_threads(1)
    seen, samples = Seen(), []
    with pytest.MonkeyPatch.context() as monkeypatch, start_engine(folder) as engine:
        stand_in(monkeypatch)
        trainer = make_trainer(folder, engine, config(folder), [seen])
        worker = trainer.rollout_worker
        take = worker.rollout_buffer.get

        def get(timeout: float) -> Sample:
            samples.append(take(timeout=timeout))
            return samples[-1]

        monkeypatch.setattr(worker.rollout_buffer, "get", get)
        trainer.train()
        prompt = AutoTokenizer.from_pretrained(folder / "start").encode("good 1")
        served = asyncio.run(complete(engine, prompt))
        yield Run(folder, seen, samples, worker, trainer, served, prompt)


def test_the_worker_is_what_the_protocol_asks_for() -> None:
    from trl.experimental.async_grpo.async_grpo_trainer import RolloutWorkerProtocol, WeightTransferProtocol

    for protocol, ours in ((RolloutWorkerProtocol, HarnessRolloutWorker), (WeightTransferProtocol, WeightTransfer)):
        for name, method in inspect.getmembers(protocol, inspect.isfunction):
            if not name.startswith("_"):
                assert (
                    inspect.signature(method).parameters.keys()
                    == inspect.signature(getattr(ours, name)).parameters.keys()
                )


def test_a_sample_has_the_fields_of_theirs() -> None:
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    assert [field.name for field in dataclasses.fields(RolloutSample)] == list(Sample.__struct_fields__)


def test_two_steps_have_finite_losses_and_count_what_was_trained(run: Run) -> None:
    assert [math.isfinite(line["loss"]) for line in run.seen.lines] == [True] * STEPS
    assert all(line["grad_norm"] > 0 for line in run.seen.lines)
    assert all(0 <= line["reward"] <= 1 for line in run.seen.lines)
    # At the first step engine and trainer hold the same weights, and compute the same logprobs (fp32).
    assert abs(run.seen.lines[0]["ratio"] - 1) < 1e-3
    assert run.seen.lines[0]["kl"] < 1e-6


def test_every_sample_that_trl_took_trains_and_was_really_sampled(run: Run) -> None:
    captured = {
        tuple(call.completion.token_ids.tolist()): call.completion.logprobs
        for group in read_groups(run.folder)
        for rollout in group.rollouts
        for call in rollout.trace.calls
    }
    assert len(run.samples) >= 4 * STEPS
    for sample in run.samples:
        mask = sample.completion_mask.astype(bool)
        assert mask.any() and math.isfinite(sample.advantage)
        assert sample.input_ids.dtype == np.int64 and sample.old_log_probs.dtype == np.float32
        logprobs = captured[tuple(sample.input_ids[mask].tolist())]
        np.testing.assert_array_equal(sample.old_log_probs[mask], logprobs)


def test_weights_changed_and_the_engine_serves_the_new_version(run: Run) -> None:
    """One sync before the first step and one after each: TRL's version, the worker's and the engine's are the same."""
    assert run.trainer.model_version == run.worker.model_version == STEPS + 1
    assert run.served.min_policy_version == run.served.max_policy_version == STEPS + 1
    start = AutoModelForCausalLM.from_pretrained(run.folder / "start")
    trained = run.trainer.model
    assert any((a != b).any() for a, b in zip(start.parameters(), trained.parameters(), strict=True))
    gaps = {name: logprob_gap(model, run.prompt, run.served) for name, model in (("start", start), ("now", trained))}
    assert gaps["now"] < 1e-4 < gaps["start"]


def logprob_gap(model: Any, prompt: list[int], completion: Completion) -> float:
    """Largest difference between what the engine said of its tokens and what a model says."""
    ids = torch.tensor([[*prompt, *completion.token_ids.tolist()]])
    with torch.no_grad():
        fresh = AutoModelForCausalLM.from_config(model.config, attn_implementation="eager")
        fresh.load_state_dict(model.state_dict())
        logprobs = fresh.eval()(input_ids=ids).logits[0].log_softmax(-1)
    said = logprobs[range(len(prompt) - 1, ids.shape[1] - 1), completion.token_ids.tolist()]
    return float((said - torch.from_numpy(completion.logprobs.copy())).abs().max())


def test_nothing_of_the_worker_is_left(run: Run) -> None:
    run.worker.stop()
    assert [child.name for child in multiprocessing.active_children()] == []
    names = [child.name() for child in psutil.Process().children(recursive=True)]
    assert "bwrap" not in names
    with pytest.raises(WorkerError, match="dead"):
        run.worker.check_health(stale_after_s=300.0)
    # What was finished is on disk.
    assert {group.group_id for group in read_groups(run.folder)} >= set(run.worker.rollout_buffer.taken)


def test_a_run_is_resumed_with_its_rollouts_and_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.save_model(tmp_path / "start", "llama")
    stand_in(monkeypatch)
    with start_engine(tmp_path) as engine:
        first = make_trainer(tmp_path, engine, config(tmp_path, max_steps=1, save_strategy="steps", save_steps=1), [])
        first.train()
    checkpoint = tmp_path / "checkpoints" / "checkpoint-1"
    taken = json.loads((checkpoint / "longrein_rollouts.json").read_bytes())["taken"]
    seen = Seen()
    with start_engine(tmp_path) as engine:
        second = make_trainer(tmp_path, engine, config(tmp_path), [seen])
        second.model_version = CheckpointRollouts(second.rollout_worker).restore(checkpoint)
        second.train(resume_from_checkpoint=str(checkpoint))
        # Version 2 was of the checkpoint's weights; they are published again as 3, and the second step is 4.
        assert asyncio.run(complete(engine, [5, 6, 7])).max_policy_version == second.model_version == 4
    assert len(seen.lines) == 1 and math.isfinite(seen.lines[0]["loss"])
    used = second.rollout_worker.rollout_buffer.taken
    assert used[: len(taken)] == taken and len(used) == len(set(used)) > len(taken)
    assert not (tmp_path / "rollouts.1").exists()
