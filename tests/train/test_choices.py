"""What a configuration may ask for, and what each choice does to a whole training run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from longrein.config import RolloutSection, TrainSection
from longrein.errors import BatchError, ConfigError, DivergedError
from longrein.train.choose import policy_objective
from longrein.train.collect import REPLACED_PER_GROUP
from longrein.train.guard import KEPT_STEPS
from longrein.train.loss_choices import NAMES, LossChoices
from longrein.train.methods import METHODS
from longrein.train.reference import NoPenalty
from longrein.train.saved_rows import load_rows
from longrein.types import Call, RolloutGroup
from tests.train.table import choices
from tests.train.test_trainer import config, good, step_lines, talk, trainer
from tests.train.toy import Recorder, Script, group


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"loss": "ppo"}, "grpo, gspo, cispo, reinforce"),
        ({"advantage": "std"}, "leave_one_out"),
        ({"epsilon": 1.5}, "epsilon=1.5"),
        ({"epsilon_high": 0.0}, "epsilon_high=0.0"),
        ({"delta": 1.1}, "delta=1.1"),
        ({"delta": 5.0, "loss": "cispo"}, "delta has no meaning"),
        ({"beta": -0.1}, "beta=-0.1"),
        ({"importance_sampling": "token_mask"}, "set old_logprobs='recomputed'"),
        ({"importance_sampling": "mask"}, "token_truncate"),
        ({"importance_sampling_cap": 0.5}, "importance_sampling_cap=0.5"),
        (
            {
                "old_logprobs": "recomputed",
                "importance_sampling": "token_truncate",
                "importance_sampling_floor": 0.5,
            },
            "for masking",
        ),
        ({"old_logprobs": "recomputed"}, "train uncorrected"),
        ({"loss": "reinforce"}, "train uncorrected"),
        ({"equal_groups": "skip"}, "count, drop, replace"),
    ],
)
def test_what_cannot_work_is_one_clear_error(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        config(tmp_path, **changes)
    assert str(caught.value).startswith("training config: ")


def test_all_problems_come_in_one_message() -> None:
    with pytest.raises(ConfigError, match=r"loss='x'.*equal_groups='y'.*epsilon=2"):
        choices(loss="x", epsilon=2, equal_groups="y")


@pytest.mark.parametrize("method", METHODS)
def test_the_published_methods_are_accepted_when_on_policy(tmp_path: Path, method: str) -> None:
    assert config(tmp_path, **METHODS[method], max_staleness=0).loss_choices.loss == METHODS[method]["loss"]


def test_the_run_file_knows_the_same_names_and_defaults(tmp_path: Path) -> None:
    """``longrein.config`` must not import the trainer, so names are written down twice."""
    types = {field.name: field.type for field in msgspec.structs.fields(TrainSection)}
    for name, literal in NAMES.items():
        assert get_args(types[name]) == get_args(literal), name
    ours = config(tmp_path).loss_choices
    for name in LossChoices.__struct_fields__:
        if name != "max_staleness":
            assert getattr(TrainSection(), name) == getattr(ours, name), name
    assert RolloutSection().max_staleness == 1, "a run file's own default"


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "gspo"},
        {"loss": "cispo", "loss_aggregation": "group"},
        {"loss": "reinforce", "old_logprobs": "recomputed", "importance_sampling": "sequence_truncate"},
        {"loss_aggregation": "constant", "advantage": "group_centred"},
        {"old_logprobs": "recomputed", "importance_sampling": "token_mask"},
        {"loss": "gspo", "gradient_checkpointing": True},
    ],
)
def test_every_choice_trains_a_model(folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Forked rollouts in micro-batches of one row: sequences come from a pass of their own."""

    def forked(index: int) -> list[Call]:
        return [*talk(0)(index), call_of_another_branch(index)]

    receiver = Recorder()
    args = config(tmp_path, max_steps=1, micro_batch_tokens=1, **changes)
    made = trainer(folder, args, Script([group("g", [0.0, 1.0], forked)]), receiver)
    made.train()
    (line,) = step_lines(made)
    assert line["rows"] == 4
    assert np.isfinite(line["grad_norm"])
    assert line["grad_norm"] > 0
    fresh = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    assert not torch.equal(receiver.sent[0]["model.norm.weight"], fresh["model.norm.weight"])


def call_of_another_branch(index: int) -> Call:
    return msgspec.structs.replace(talk(0)(index)[0], call_id=1, prompt_delta=np.array([8, 9], np.int32))


def test_the_default_objective_takes_no_pass_for_sequences(tmp_path: Path) -> None:
    """Also not one that compares sequences to recomputed logprobs: all their ratios are 1."""

    def needs(**changes: Any) -> bool:
        return policy_objective(choices(max_staleness=0, **changes), NoPenalty()).needs_sequences

    assert not needs()
    assert needs(loss="gspo")
    assert not needs(loss="gspo", old_logprobs="recomputed")
    assert needs(old_logprobs="recomputed", importance_sampling="sequence_mask")


def equal(number: int) -> RolloutGroup:
    return group(f"e{number}", [1.0, 1.0], talk(0))


@pytest.mark.parametrize(("rule", "tokens", "taken"), [("count", 16, 2), ("drop", 8, 2), ("replace", 16, 3)])
def test_equal_groups_count_or_go(folder: Path, tmp_path: Path, rule: str, tokens: int, taken: int) -> None:
    args = config(tmp_path, max_steps=1, per_device_train_batch_size=4, equal_groups=rule)
    worker = Script([equal(0), good(1), good(2)])
    made = trainer(folder, args, worker, Recorder())
    made.train()
    (line,) = step_lines(made)
    assert (line["trained_tokens"], worker.taken) == (tokens, taken)
    assert line["count/equal_reward_groups"] == 1
    assert line["count/replaced_groups"] == (rule == "replace")


def test_dynamic_sampling_ends_where_nothing_differs(folder: Path, tmp_path: Path) -> None:
    worker = Script(lambda number: good(number) if number == 2 else equal(number))
    args = config(tmp_path, max_steps=1, per_device_train_batch_size=4, equal_groups="replace")
    made = trainer(folder, args, worker, Recorder())
    made.train()
    (line,) = step_lines(made)
    assert worker.taken == 2 * REPLACED_PER_GROUP + 1
    assert (line["rows"], line["count/empty_steps"]) == (4, 0), "the one that differs, and one that does not"


def test_advantages_are_normalised_over_the_step(folder: Path, tmp_path: Path) -> None:
    groups = [
        msgspec.structs.replace(good(0), rewards=(0.0, 4.0), advantages=(-2.0, 2.0)),
        msgspec.structs.replace(good(1), rewards=(0.0, 2.0), advantages=(-1.0, 1.0)),
    ]
    args = config(tmp_path, max_steps=1, per_device_train_batch_size=4, advantage="batch_normalised")
    made = trainer(folder, args, Script(groups), Recorder())
    made.train()
    expected = np.array([-2.0, 2.0, -1.0, 1.0]) / (np.std([-2.0, 2.0, -1.0, 1.0]) + 1e-4)
    assert [row.advantage for row in made.step_rows] == pytest.approx(expected.tolist())


def test_a_worker_with_another_advantage_is_refused(folder: Path, tmp_path: Path) -> None:
    worker = Script(good)
    worker.advantage = "leave_one_out"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="worker advantage='leave_one_out', config advantage='group_normalised'"):
        trainer(folder, config(tmp_path), worker, Recorder())


def with_logprobs(number: int, value: float, members: set[int]) -> RolloutGroup:
    def calls(index: int) -> list[Call]:
        (made,) = talk(0)(index)
        if index not in members:
            return [made]
        logprobs = made.completion.logprobs.copy()
        logprobs[1] = value
        return [msgspec.structs.replace(made, completion=msgspec.structs.replace(made.completion, logprobs=logprobs))]

    return group(f"g{number}", [0.0, 1.0], calls)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_logprob_that_is_not_finite_leaves_its_rollout_out(folder: Path, tmp_path: Path, value: float) -> None:
    receiver = Recorder()
    made = trainer(folder, config(tmp_path, max_steps=1), Script([with_logprobs(0, value, {0})]), receiver)
    made.train()
    (line,) = step_lines(made)
    assert (line["rows"], line["count/non_finite_rows"], line["trained_tokens"]) == (1, 1, 4)
    assert all(torch.isfinite(tensor).all() for tensor in receiver.sent[0].values())


def test_a_rollout_without_calls_is_in_no_denominator(folder: Path, tmp_path: Path) -> None:
    """It has a reward, which others are compared with, and no token."""

    def calls(index: int) -> list[Call]:
        return talk(0)(index) if index else []

    losses = []
    for aggregation in ("token", "rollout", "rollout_sum", "group"):
        args = config(tmp_path, max_steps=1, loss_aggregation=aggregation)
        made = trainer(folder, args, Script([group("g", [0.0, 1.0], calls)]), Recorder())
        made.train()
        (line,) = step_lines(made)
        assert (line["rows"], line["trained_tokens"], line["count/empty_steps"]) == (1, 4, 0)
        losses.append(line["loss"] / (4 if aggregation == "rollout_sum" else 1))
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-5)


def test_a_step_without_any_token_is_empty(folder: Path, tmp_path: Path) -> None:
    made = trainer(
        folder, config(tmp_path, max_steps=1), Script([group("g", [0.0, 1.0], lambda _index: [])]), Recorder()
    )
    made.train()
    (line,) = step_lines(made)
    assert (line["rows"], line["count/empty_steps"]) == (0, 1)


def test_a_step_of_nothing_but_such_logprobs_ends_the_run(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="2 were left out"):
        trainer(folder, config(tmp_path), Script([with_logprobs(0, float("nan"), {0, 1})]), Recorder()).train()


def test_one_such_logprob_in_a_step_of_equal_groups_is_an_empty_step(folder: Path, tmp_path: Path) -> None:
    nan = with_logprobs(0, float("nan"), {0})
    groups = [msgspec.structs.replace(nan, rewards=(1.0, 1.0), advantages=(0.0, 0.0)), equal(1)]
    args = config(tmp_path, max_steps=1, per_device_train_batch_size=4)
    made = trainer(folder, args, Script(groups), Recorder())
    made.train()
    (line,) = step_lines(made)
    assert (line["rows"], line["count/non_finite_rows"], line["count/empty_steps"]) == (0, 1, 1)


def test_such_logprobs_end_a_step_whose_other_groups_are_equal(folder: Path, tmp_path: Path) -> None:
    args = config(tmp_path, max_steps=1, per_device_train_batch_size=4)
    worker = Script([equal(0), with_logprobs(1, float("nan"), {0, 1})])
    with pytest.raises(BatchError, match="2 were left out"):
        trainer(folder, args, worker, Recorder()).train()


def test_the_rows_of_a_refused_step_are_kept_for_replay(folder: Path, tmp_path: Path) -> None:
    huge = msgspec.structs.replace(good(0), advantages=(-1e39, 1e39))
    made = trainer(folder, config(tmp_path, max_steps=10, max_staleness=10), Script([good(0), *[huge] * 9]), Recorder())
    with pytest.raises(DivergedError, match="_skipped"):
        made.train()
    files = sorted((tmp_path / "_skipped").iterdir())
    assert [file.name for file in files] == ["step-000002.npz", "step-000003.npz", "step-000004.npz"]
    assert len(files) < KEPT_STEPS
    saved = load_rows(files[-1])
    assert len(saved) == len(made.step_rows) == 2
    for ours, theirs in zip(saved, made.step_rows, strict=True):
        assert msgspec.structs.asdict(ours).keys() == msgspec.structs.asdict(theirs).keys()
        for name, value in msgspec.structs.asdict(theirs).items():
            np.testing.assert_array_equal(getattr(ours, name), value)
            assert getattr(getattr(ours, name), "dtype", None) == getattr(value, "dtype", None)


def test_a_file_without_rows_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"nothing")
    with pytest.raises(BatchError, match=r"x\.npz holds no rows"):
        load_rows(tmp_path / "x.npz")


def test_the_reference_holds_the_policy_near(folder: Path, tmp_path: Path) -> None:
    distances = {}
    for beta in (0.0, 10.0):
        receiver = Recorder()
        made = trainer(folder, config(tmp_path, max_steps=6, max_staleness=9, beta=beta), Script(good), receiver)
        made.train()
        lines = step_lines(made)
        assert lines[0]["kl"] == pytest.approx(0.0, abs=1e-6), "the reference is where training starts"
        assert (lines[-1]["kl"] > 1e-5) == (beta > 0)
        start = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
        distances[beta] = sum(float((receiver.sent[-1][name] - start[name].detach()).norm() ** 2) for name in start)
    assert distances[10.0] < distances[0.0]


def test_with_a_reference_rows_without_advantage_train_too(folder: Path, tmp_path: Path) -> None:
    worker = Script(lambda number: equal(number) if number else good(number))
    made = trainer(folder, config(tmp_path, max_steps=2, beta=0.1, equal_groups="count"), worker, Recorder())
    made.train()
    assert [line["count/empty_steps"] for line in step_lines(made)] == [0, 0]
    assert step_lines(made)[1]["grad_norm"] > 0


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"ACCELERATE_MIXED_PRECISION": "fp16"}, "fp16=True"),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"}, "FSDP version='1' cannot work; use 2"),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "deepspeed=True cannot work; shard with FSDP2"),
    ],
)
def test_what_a_launcher_asks_for_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], says: str
) -> None:
    args = config(tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=says):
        args._refuse_what_cannot_work()
