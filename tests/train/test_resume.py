"""A run that was stopped goes on as if it had not been, and one that was killed is never the worse for it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longrein.errors import CheckpointError
from longrein.train.checkpoint import NOTE, checkpoints, last_checkpoint, read_checkpoint
from longrein.train.trainer import AsyncGRPOTrainer
from longrein.train.whole_folder import written_whole
from longrein.types import Call, RolloutGroup
from tests import tiny
from tests.traces import call
from tests.train.continued import STEPS, Draws, StopAt, arguments, digest, in_process, killed_at, trainer, whole_run
from tests.train.toy import Recorder, Script, group


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with dropout: its gradient depends on torch's random state."""
    return tiny.save_model(
        tmp_path_factory.mktemp("start"), hidden_size=32, intermediate_size=64, attention_dropout=0.2
    )


@pytest.fixture(scope="module")
def in_one_piece(start: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    answer, code = in_process(whole_run, start, tmp_path_factory.mktemp("whole"))
    assert code == 0
    return answer


@pytest.mark.parametrize("stop", range(1, STEPS))
def test_stopped_and_resumed_is_bit_equal_to_one_piece(start: Path, tmp_path: Path, stop: int) -> None:
    draws = Draws()
    whole = trainer(start, tmp_path / "whole", draws)
    whole.train()

    first, second = Draws(), Draws()
    cut = trainer(start, tmp_path / "cut", first, StopAt(stop))
    with pytest.raises(InterruptedError):
        cut.train()
    resumed = trainer(start, tmp_path / "cut", second)
    resumed.train(resume_from_checkpoint=True)

    assert digest(resumed) == digest(whole)
    assert first.drawn[:stop] + second.drawn == draws.drawn
    before, after = cut.rollout_worker.given, resumed.rollout_worker.given  # type: ignore[attr-defined]
    assert before[:stop] + after == whole.rollout_worker.given  # type: ignore[attr-defined]
    steps = [[(line["step"], line["epoch"]) for line in made.state.log_history] for made in (whole, resumed)]
    assert steps[0] == steps[1]


@settings(
    deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(event=st.integers(1, 105))
def test_killed_at_any_file_operation_the_run_goes_on_to_the_same_end(
    start: Path, in_one_piece: str, tmp_path_factory: pytest.TempPathFactory, event: int
) -> None:
    out = tmp_path_factory.mktemp("killed")
    _, code = in_process(killed_at, event, start, out)
    assert code in (0, -signal.SIGKILL)
    for folder in checkpoints(out)[-1:]:
        assert read_checkpoint(folder).note.step == len(read_checkpoint(folder).note.taken)
    answer, code = in_process(whole_run, start, out)
    assert (answer, code) == (in_one_piece, 0), f"killed at {event}"


def _group(number: int, version: int = 0) -> RolloutGroup:
    def calls(index: int) -> list[Call]:
        ids = [20 + index, 30 + index, 40, 2]
        return [call(0, None, [5, 6, 7], ids, min_policy_version=version, max_policy_version=version)]

    return group(f"g{number}", [0.0, 1.0, 1.0, 0.0], calls)


def _scripted(folder: Path, out: Path, worker: Script, **changes: Any) -> AsyncGRPOTrainer:
    fields = {"max_steps": 2, **changes}
    args = arguments(out, **fields)
    return AsyncGRPOTrainer(model=str(folder), args=args, rollout_worker=worker, weight_receiver=Recorder())


def test_no_step_is_left_none_is_taken_and_the_engine_gets_the_weights(start: Path, tmp_path: Path) -> None:
    made = trainer(start, tmp_path)
    made.train()
    again = trainer(start, tmp_path)
    again.train(resume_from_checkpoint=True)
    assert digest(again) == digest(made)
    assert again.state.global_step == STEPS
    worker = again.rollout_worker
    assert (worker.version, worker.given) == (STEPS, [])  # type: ignore[attr-defined]


def test_what_steps_took_is_in_the_checkpoint_dropped_groups_too(start: Path, tmp_path: Path) -> None:
    """Two groups at version 0 train at 0; a third is too old at 1 and is used up all the same."""
    worker = Script([_group(0), _group(1), _group(2), _group(3, version=1)])
    made = _scripted(start, tmp_path, worker)
    made.train()
    assert [read_checkpoint(folder).note.taken for folder in checkpoints(tmp_path)] == [
        ("g0",),
        ("g0", "g1", "g2", "g3"),
    ]
    resumed = Script([_group(4, version=2)])
    _scripted(start, tmp_path, resumed, max_steps=3).train(resume_from_checkpoint=True)
    assert resumed.resumed == [(("g0", "g1", "g2", "g3"), 2)]
    assert read_checkpoint(tmp_path / "checkpoint-3").note.taken == ("g0", "g1", "g2", "g3", "g4")


def test_other_histories_are_kept_out_of_the_way(start: Path, tmp_path: Path) -> None:
    """Going on from an earlier step, or starting anew, renames later checkpoints: no resume may pick them up."""
    trainer(start, tmp_path).train()
    trainer(start, tmp_path, max_steps=2).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert {path.name for path in tmp_path.glob("*checkpoint-*")} == {
        *("checkpoint-1", "checkpoint-2", "_undone-checkpoint-2", "_undone-checkpoint-3")
    }
    with pytest.raises(CheckpointError, match="was undone"):
        trainer(start, tmp_path).train(resume_from_checkpoint=str(tmp_path / "_undone-checkpoint-3"))
    trainer(start, tmp_path, max_steps=1).train()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-1"]
    assert len(list(tmp_path.glob("_undone-*"))) == 4


def test_only_so_many_are_kept(start: Path, tmp_path: Path) -> None:
    trainer(start, tmp_path, save_total_limit=2).train()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-2", "checkpoint-3"]


@pytest.fixture(scope="module")
def saved(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("saved")
    trainer(start, out, max_steps=1).train()
    return out


@pytest.mark.parametrize(
    ("model", "changes", "says"),
    [
        ({"hidden_size": 64}, {}, "shape.*more tensors"),
        ({"tokenizer": True}, {}, "tokenizer or its chat template"),
        ({}, {"num_generations": 2}, "num_generations was 4 and is 2"),
        ({}, {"temperature": 0.5}, "temperature was 1.0 and is 0.5"),
        ({}, {"advantage": "leave_one_out"}, "advantage was 'group_normalised' and is 'leave_one_out'"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_before_anything_starts(
    saved: Path, tmp_path: Path, model: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    other_tokenizer = model.pop("tokenizer", False)
    folder = tiny.save_model(tmp_path / "model", **{"hidden_size": 32, "intermediate_size": 64, **model})
    if other_tokenizer:
        tiny.tokenizer("{{ messages }}").save_pretrained(folder)
    worker = Script([])
    made = _scripted(folder, saved, worker, **changes)
    with pytest.raises(CheckpointError, match=f"checkpoint-1 is of another run: .*{says}"):
        made.train(resume_from_checkpoint=True)
    assert (worker.started, worker.resumed) == (0, [])


def test_what_is_not_a_whole_checkpoint_is_said(saved: Path, start: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no whole checkpoint"):
        trainer(start, tmp_path).train(resume_from_checkpoint=True)
    with pytest.raises(CheckpointError, match=r"not a checkpoint of ours.*Give a checkpoint-N folder"):
        trainer(start, tmp_path).train(resume_from_checkpoint=str(start))
    with written_whole(tmp_path / "checkpoint-1") as part:
        for path in (saved / "checkpoint-1").iterdir():
            (part / path.name).write_bytes(path.read_bytes())
    assert last_checkpoint(tmp_path) is not None
    optimizer = tmp_path / "checkpoint-1" / "optimizer.pt"
    optimizer.write_bytes(optimizer.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"is not whole: optimizer.pt has \d+ bytes instead of"):
        trainer(start, tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    (tmp_path / "checkpoint-1" / NOTE).write_bytes(b"{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_checkpoint(tmp_path / "checkpoint-1")
    assert last_checkpoint(tmp_path) is None


def test_a_folder_is_written_whole_or_left_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with written_whole(folder) as part:
        (part / "a").write_text("1")
        assert not folder.exists()
    with pytest.raises(InterruptedError), written_whole(folder) as part:
        (part / "b").write_text("2")
        raise InterruptedError
    assert [path.name for path in folder.iterdir()] == ["a"]
    with written_whole(folder) as part:
        (part / "c").write_text("3")
    assert [path.name for path in folder.iterdir()] == ["c"]
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
