"""The trainer from end to end on a tiny real model: what reaches the engine, what trains, what is counted."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from longrein.engines.vocabulary import vocabulary_digest
from longrein.errors import BatchError, ConfigError, DivergedError, EngineError, WorkerError
from longrein.rollout.worker import HarnessRolloutWorker
from longrein.train.agreement import TWICE_TOLD
from longrein.train.grpo_config import AsyncGRPOConfig
from longrein.train.trainer import AsyncGRPOTrainer
from longrein.types import Call, Finding, RolloutGroup
from tests.traces import call, failed
from tests.train.toy import Recorder, Sampler, Script, group


def config(out: Path, **changes: Any) -> AsyncGRPOConfig:
    fields: dict[str, Any] = {
        "output_dir": str(out),
        "use_cpu": True,
        "save_strategy": "no",
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "max_steps": 2,
        "num_generations": 2,
        "per_device_train_batch_size": 2,
        "max_staleness": 1,
        **changes,
    }
    return AsyncGRPOConfig(**fields)


def trainer(folder: Path, args: AsyncGRPOConfig, worker: Script, receiver: Recorder, **more: Any) -> AsyncGRPOTrainer:
    return AsyncGRPOTrainer(model=str(folder), args=args, rollout_worker=worker, weight_receiver=receiver, **more)


def talk(version: int) -> Any:
    """One call of four tokens a rollout, other ones for each."""

    def calls(index: int) -> list[Call]:
        ids = [20 + index, 30 + index, 40, 2]
        return [call(0, None, [5, 6, 7], ids, min_policy_version=version, max_policy_version=version)]

    return calls


def good(number: int, version: int = 0) -> RolloutGroup:
    return group(f"g{number}", [0.0, 1.0], talk(version))


def step_lines(made: AsyncGRPOTrainer) -> list[dict[str, Any]]:
    return [line for line in made.state.log_history if "learning_rate" in line]


def test_versions_advance_by_one_and_the_engine_gets_changed_weights(folder: Path, tmp_path: Path) -> None:
    worker, receiver = Script(lambda number: good(number, version=number)), Recorder()
    made = trainer(folder, config(tmp_path, max_steps=3), worker, receiver)
    made.train()

    assert receiver.versions == worker.versions == [1, 2, 3]
    assert (worker.started, worker.stopped, worker.taken) == (1, 1, 3)
    fresh = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    (begun,) = receiver.begun
    assert all(torch.equal(begun[name], parameter) for name, parameter in fresh.items())
    assert receiver.sent[0].keys() == fresh.keys(), "tied weights come once, under the name a fresh model has"
    for earlier, later in [(fresh, receiver.sent[0]), (receiver.sent[0], receiver.sent[2])]:
        assert not torch.equal(earlier["model.embed_tokens.weight"], later["model.embed_tokens.weight"])
    lines = step_lines(made)
    assert [line["staleness_max"] for line in lines] == [0, 0, 0]
    assert lines[0]["reward"] == 0.5
    assert lines[0]["trained_tokens"] == 8
    assert lines[0]["logprob_gap_max"] > 0
    assert {"wait_s", "train_s", "publish_s", "tokens_per_s", "entropy", "clip_fraction"} <= lines[0].keys()


def test_the_saved_folder_reloads_with_tokenizer_and_template(folder: Path, tmp_path: Path) -> None:
    receiver = Recorder()
    made = trainer(folder, config(tmp_path), Script(good), receiver)
    made.train()
    made.save_model(str(tmp_path / "final"))

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "final")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), receiver.sent[-1][name])
    assert model.config.use_cache
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "final")
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(folder).chat_template


def test_a_checkpoint_resumes_with_its_version(folder: Path, tmp_path: Path) -> None:
    trainer(folder, config(tmp_path, save_strategy="steps", save_steps=2), Script(good), Recorder()).train()
    worker, receiver = Script(lambda number: good(number, version=2)), Recorder()
    args = config(tmp_path, save_strategy="steps", save_steps=2, max_steps=4)
    trainer(folder, args, worker, receiver).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert receiver.versions == [2, 3, 4], "the engine is brought up to date before the first rollout"


def test_stale_groups_are_dropped_counted_and_replaced(folder: Path, tmp_path: Path) -> None:
    """With a bound of 1, version-0 rows train at versions 0 and 1, and never at 2."""
    versions = [0, 0, 0, 0, 2]
    worker = Script([good(number, version) for number, version in enumerate(versions)])
    made = trainer(folder, config(tmp_path, max_steps=3), worker, Recorder())
    made.train()
    lines = step_lines(made)
    assert [line["count/stale_groups"] for line in lines] == [0, 0, 2]
    assert [line["staleness_max"] for line in lines] == [0, 1, 0]
    assert worker.taken == 5


def test_a_stale_row_leaves_its_group(folder: Path, tmp_path: Path) -> None:
    def calls(index: int) -> list[Call]:
        return talk(2 if index else 0)(index)

    worker = Script([good(0), good(1), group("g", [0.0, 1.0], calls)])
    made = trainer(folder, config(tmp_path, max_steps=3), worker, Recorder())
    made.train()
    last = step_lines(made)[-1]
    assert (last["rows"], last["count/stale_rows"], last["count/stale_groups"]) == (1, 1, 0)


def test_unscorable_rollouts_never_enter(folder: Path, tmp_path: Path) -> None:
    """A group without rewards is replaced; a rollout without one gives no row, and its reason is counted."""
    none = group("n", [None, None], talk(0), rollouts=(failed("n-0"), failed("n-1")))
    scored = good(1).rollouts
    found = (Finding(kind="disk_limit", detail="a"), Finding(kind="disk_limit", detail="b"))
    scored = tuple(msgspec.structs.replace(one, findings=found) for one in scored)
    half = group("h", [1.0, None, 0.0], talk(0), rollouts=(scored[0], failed("h-1"), scored[1]))
    args = config(tmp_path, max_steps=1, num_generations=3, per_device_train_batch_size=3)
    worker = Script([none, half])
    made = trainer(folder, args, worker, Recorder())
    made.train()
    (line,) = step_lines(made)
    assert worker.taken == 2
    assert line["count/unscorable_groups"] == 1
    assert line["count/failed_sandbox"] == 3
    assert line["count/unscored_rollouts"] == 3
    assert line["count/finding_disk_limit"] == 2, "rollouts, not findings"
    assert (line["reward"], line["rows"], line["trained_tokens"]) == (0.5, 2, 8)


def test_equal_rewards_count_towards_the_step_and_teach_nothing(folder: Path, tmp_path: Path) -> None:
    worker, receiver = Script([group("g", [1.0, 1.0], talk(0)), good(1)]), Recorder()
    made = trainer(folder, config(tmp_path), worker, receiver)
    made.train()
    first, second = step_lines(made)
    assert (first["count/equal_reward_groups"], first["count/empty_steps"]) == (1, 1)
    assert second["count/empty_steps"] == 0
    fresh = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    torch.testing.assert_close(receiver.sent[0]["model.norm.weight"], fresh["model.norm.weight"].detach())
    assert receiver.versions == [1, 2], "the worker's admission counts versions, so they go on"


def test_a_step_without_a_loss_logs_none(folder: Path, tmp_path: Path) -> None:
    """One line each: a good step, an empty one, a refused one, and all three together."""
    empty = group("e", [1.0, 1.0], talk(0))
    refused = msgspec.structs.replace(good(2), advantages=(-1e39, 1e39))
    groups = [good(0), empty, refused]
    made = trainer(folder, config(tmp_path, max_steps=3, max_staleness=3), Script(groups), Recorder())
    made.train()
    lines = step_lines(made)
    assert ["loss" in line for line in lines] == [True, False, False]
    assert lines[2]["count/non_finite_steps"] == 1

    together = trainer(
        folder, config(tmp_path, max_steps=3, max_staleness=3, logging_steps=3), Script(groups), Recorder()
    )
    together.train()
    (line,) = step_lines(together)
    assert line["loss"] == lines[0]["loss"] != 0
    assert "loss" not in together.state.log_history[-1], "the closing summary is no step"


def test_an_empty_step_does_not_move_by_momentum(folder: Path, tmp_path: Path) -> None:
    worker, receiver = Script([good(0), group("g", [1.0, 1.0], talk(0))]), Recorder()
    trainer(folder, config(tmp_path, weight_decay=0.1), worker, receiver).train()
    for name, tensor in receiver.sent[0].items():
        assert torch.equal(tensor, receiver.sent[1][name])


def test_a_step_whose_loss_is_not_finite_is_skipped_and_three_in_a_row_end_the_run(
    folder: Path, tmp_path: Path
) -> None:
    """The advantage is a finite float64 that float32 cannot hold; the weights must not notice."""
    args, receiver = config(tmp_path, max_steps=10, max_staleness=10), Recorder()
    huge = msgspec.structs.replace(good(0), advantages=(-1e39, 1e39))
    worker = Script([huge, good(1), huge, huge, huge])
    made = trainer(folder, args, worker, receiver)
    with pytest.raises(DivergedError, match="loss was not finite for 3 steps in a row"):
        made.train()
    assert worker.stopped == 1
    before, after = receiver.sent[:2]
    fresh = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    assert torch.equal(before["model.norm.weight"], fresh["model.norm.weight"])
    assert not torch.equal(after["model.norm.weight"], fresh["model.norm.weight"])
    assert all(torch.isfinite(tensor).all() for sent in receiver.sent for tensor in sent.values())
    assert [line.get("count/non_finite_steps", 0) for line in step_lines(made)] == [1, 0, 1, 1]


def test_a_step_whose_gradients_are_not_finite_is_skipped(folder: Path, tmp_path: Path) -> None:
    receiver = Recorder()
    made = trainer(folder, config(tmp_path), Script(good), receiver)
    spoilt = made.model.model.norm.weight.register_hook(lambda gradient: gradient * float("nan"))

    class Heal(TrainerCallback):
        def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
            spoilt.remove()

    made.add_callback(Heal())
    made.train()
    fresh = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    assert torch.equal(receiver.sent[0]["model.norm.weight"], fresh["model.norm.weight"])
    assert not torch.equal(receiver.sent[1]["model.norm.weight"], fresh["model.norm.weight"])
    assert [line.get("count/non_finite_steps", 0) for line in step_lines(made)] == [1, 0]


def test_a_dead_worker_ends_training_with_its_reason(folder: Path, tmp_path: Path) -> None:
    worker = Script([], dies="the rollout worker was killed by signal 9")
    with pytest.raises(WorkerError, match="signal 9"):
        trainer(folder, config(tmp_path), worker, Recorder()).train()
    assert worker.stopped == 1


def test_ids_outside_the_vocabulary_end_training_before_the_step(folder: Path, tmp_path: Path) -> None:
    receiver = Recorder()
    bad = group("g", [0.0, 1.0], lambda _index: [call(0, None, [5], [9999])])
    with pytest.raises(BatchError, match="9999"):
        trainer(folder, config(tmp_path), Script([bad]), receiver).train()
    assert receiver.versions == []


def test_weights_that_the_engine_refuses_end_training_before_the_first_rollout(folder: Path, tmp_path: Path) -> None:
    """Those of another model, or with a vocabulary of another size."""

    class Refuses:
        def update(self, tensors: object, policy_version: int) -> None:
            raise EngineError("weights of lm_head.weight have shape (300, 32), the engine's model has (264, 32)")

    worker = Script(good)
    made = AsyncGRPOTrainer(model=str(folder), args=config(tmp_path), rollout_worker=worker, weight_receiver=Refuses())
    with pytest.raises(EngineError, match="300"):
        made.train()
    assert (worker.started, worker.taken, worker.stopped) == (0, 0, 1)


def test_a_worker_with_another_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    worker = Script(good)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    worker.vocabulary = vocabulary_digest(tokenizer.get_vocab())  # pyright: ignore[reportAttributeAccessIssue]
    trainer(folder, config(tmp_path), worker, Recorder())
    tokenizer.add_tokens(["<more>"])
    with pytest.raises(ConfigError, match="different vocabularies"):
        trainer(folder, config(tmp_path), worker, Recorder(), processing_class=tokenizer)


def test_a_group_that_does_not_add_up_is_refused(folder: Path, tmp_path: Path) -> None:
    bad = msgspec.structs.replace(good(0), advantages=(1.0,))
    with pytest.raises(BatchError, match="1 advantages"):
        trainer(folder, config(tmp_path), Script([bad]), Recorder()).train()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"per_device_train_batch_size": 3}, "divisible"),
        ({"num_generations": 1}, "at least 2"),
        ({"temperature": 0.0}, "temperature"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"loss_aggregation": "row"}, "token, rollout"),
        ({"max_staleness": -1}, "max_staleness"),
        ({"micro_batch_tokens": 0}, "micro_batch_tokens"),
        ({"fp16": True}, "bf16"),
    ],
)
def test_impossible_configs_are_one_clear_error(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config(tmp_path, **changes)


def test_accumulation_is_part_of_the_step(folder: Path, tmp_path: Path) -> None:
    args = config(tmp_path, max_steps=1, per_device_train_batch_size=1, gradient_accumulation_steps=4)
    worker, receiver = Script(good), Recorder()
    trainer(folder, args, worker, receiver).train()
    assert (worker.taken, receiver.versions) == (2, [1])


@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
def test_checkpointing_by_either_name_trains_the_same_without_a_warning(
    folder: Path, tmp_path: Path, name: str
) -> None:
    plain, saving = Recorder(), Recorder()
    trainer(folder, config(tmp_path, max_steps=1, **{name: False}), Script(good), plain).train()
    made = trainer(folder, config(tmp_path, max_steps=1, **{name: True}), Script(good), saving)
    made.train()
    assert made.model.is_activation_checkpointing
    for key, tensor in plain.sent[0].items():
        torch.testing.assert_close(tensor, saving.sent[0][key])


def test_what_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rollout_worker"):
        AsyncGRPOTrainer(model=str(folder), args=config(tmp_path), weight_receiver=Recorder())
    with pytest.raises(ConfigError, match="weight_receiver"):
        AsyncGRPOTrainer(model=str(folder), args=config(tmp_path), rollout_worker=Script([]))
    with pytest.raises(ConfigError, match="weight_receiver or vllm_server_base_url, not both"):
        trainer(folder, config(tmp_path, vllm_server_base_url="http://localhost:8000"), Script([]), Recorder())
    with pytest.raises(ConfigError, match="not on this machine; give a weights folder"):
        elsewhere = config(tmp_path, vllm_server_base_url="http://gpu-7:8000")
        AsyncGRPOTrainer(model=str(folder), args=elsewhere, rollout_worker=Script([]))
    with pytest.raises(ConfigError, match="max_steps"):
        trainer(folder, config(tmp_path, max_steps=-1), Script([]), Recorder())


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("temperature", 0.7, "worker temperature=0.7, config temperature=1.0"),
        ("num_generations", 4, "worker num_generations=4, config num_generations=2"),
        ("max_staleness", 4, "worker max_staleness=4, config max_staleness=1"),
        ("groups_per_step", 2, "worker groups_per_step=2, config groups_per_step=1.*per_device_train_batch_size"),
        ("max_tokens", 64, "worker max_tokens=64, config max_completion_length=2048"),
    ],
)
def test_a_worker_that_was_told_otherwise_is_refused(
    folder: Path, tmp_path: Path, name: str, value: float, says: str
) -> None:
    worker = Script(good)
    worker.fork_threshold_tokens = 7  # type: ignore[attr-defined]
    setattr(worker, name, getattr(config(tmp_path), {"max_tokens": "max_completion_length"}.get(name, name)))
    trainer(folder, config(tmp_path), worker, Recorder())
    setattr(worker, name, value)
    with pytest.raises(ConfigError, match=says):
        trainer(folder, config(tmp_path), worker, Recorder())
    assert worker.started == 0


def test_the_defaults_of_worker_and_config_agree() -> None:
    theirs = inspect.signature(HarnessRolloutWorker).parameters
    ours = {field.name: field.default for field in dataclasses.fields(AsyncGRPOConfig)}
    for worker_name, config_name in TWICE_TOLD.items():
        if config_name in ours:
            assert theirs[worker_name].default == ours[config_name], worker_name


def test_the_fork_threshold_of_the_config_counts(folder: Path, tmp_path: Path) -> None:
    """An engine that renders prompts itself: the second prompt repeats the first call but for one token."""

    def drifted(index: int) -> list[Call]:
        return [
            call(0, None, [5, 6, 7, 8, 9], [20 + index, 30, 40, 41, 42]),
            call(1, None, [5, 6, 7, 8, 9, 20 + index, 30, 50, 41, 42, 60], [70, 71]),
        ]

    rows = {}
    for threshold in (0, 4):
        made = trainer(
            folder,
            config(tmp_path, max_steps=1, fork_threshold_tokens=threshold),
            Script([group("g", [0.0, 1.0], drifted)]),
            Recorder(),
        )
        made.train()
        rows[threshold] = step_lines(made)[0]["rows"]
    assert rows == {0: 4, 4: 2}


def test_delivery_and_retries_are_logged(folder: Path, tmp_path: Path) -> None:
    def half_delivered(index: int) -> list[Call]:
        return [*talk(0)(index), call(1, None, [5], [9, 9, 9, 9], delivered=not index)]

    made_group = group("g", [0.0, 1.0], half_delivered)
    rollouts = tuple(msgspec.structs.replace(rollout, metrics={"retries": 1.0}) for rollout in made_group.rollouts)
    worker = Script([msgspec.structs.replace(made_group, rollouts=rollouts)])
    made = trainer(folder, config(tmp_path, max_steps=1), worker, Recorder())
    made.train()
    (line,) = step_lines(made)
    assert (line["delivered_token_fraction"], line["count/retries"]) == (0.75, 2)


def test_epochs_count_the_dataset(folder: Path, tmp_path: Path) -> None:
    receiver = Recorder()
    args = config(tmp_path, max_steps=-1, num_train_epochs=2, max_staleness=100)
    trainer(folder, args, Script(good), receiver, train_dataset=[{"prompt": "a"}] * 3).train()
    assert receiver.versions == [1, 2, 3, 4, 5, 6]


def test_training_is_quiet_unless_asked(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trainer(folder, config(tmp_path), Script(good), Recorder()).train()
    assert capfd.readouterr() == ("", "")
    trainer(
        folder, config(tmp_path, log_completions=True, num_completions_to_print=1), Script(good), Recorder()
    ).train()
    shown = capfd.readouterr().out
    assert "g0-0" in shown
    assert "advantage -0.71" in shown


def test_the_workers_metrics_are_logged(folder: Path, tmp_path: Path) -> None:
    worker = Script(good)
    worker.metrics_queue.put({"inflight_max": 3.0})
    worker.metrics_queue.put({"inflight_max": 7.0})
    made = trainer(folder, config(tmp_path, max_steps=1), worker, Recorder())
    made.train()
    assert step_lines(made)[0]["inflight_max"] == 7.0


def test_reward_rises(folder: Path, tmp_path: Path) -> None:
    """The loop closes: the sampler samples from what the trainer publishes, and learns to say low bytes."""
    sampler = Sampler(str(folder), lambda ids: float(np.mean(ids < 132)), num_generations=8, length=8)
    args = config(
        tmp_path, max_steps=20, num_generations=8, per_device_train_batch_size=32, learning_rate=1e-2, max_staleness=0
    )
    made = AsyncGRPOTrainer(model=str(folder), args=args, rollout_worker=sampler, weight_receiver=sampler)
    made.train()
    lines = step_lines(made)
    rewards = [line["reward"] for line in lines]
    assert np.mean(rewards[:3]) < 0.6
    assert np.mean(rewards[-3:]) > 0.9
    assert max(line["logprob_gap_max"] for line in lines) < 1e-4, "the sampler's logprobs are the trainer's"
