"""``longrein train --resume`` as a user runs it: killed at some moment, gone on with, and the same in the end."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from longrein.cli.run_directory import check_same_run, write_config
from longrein.cli.train import configure, run
from longrein.errors import CheckpointError
from longrein.run_file import load_config
from longrein.store import read_groups
from longrein.tasks.harbor import export_task
from longrein.train.checkpoint import checkpoints, read_checkpoint
from longrein.train.folder_weights import folder_weights
from longrein.types import Task
from tests import tiny

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
# The share of lower-case letters in the reply: a random model gets it unequally.
CHECK = b"""#!/bin/sh
if [ -e solved ]; then share=1; else
share=$(LC_ALL=C awk '{ t += length($0); n += gsub(/[a-z]/, "") } END { print (t ? n / t : 0) }' reply.txt); fi
echo "$share" > "${SANDBOX_ROOT:-}/logs/verifier/reward.txt"
"""
STEPS = 3
SHORT = ("--set", "rollout.max_tokens=20", "--set", "rollout.max_calls=1", "--set", "tasks.eval_count=0")


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One request in flight and no staleness: everything happens in one order."""
    folder = tmp_path_factory.mktemp("resume")
    for number in range(6):
        task = Task(task_id=f"t{number}", prompt=f"say {number}", tests={"test.sh": CHECK}, oracle=("touch solved",))
        export_task(task, folder / "tasks")
    model = tiny.save_model(folder / "model", "llama")
    path = folder / "run.toml"
    path.write_text(f"""
output_dir = "out"
seed = 3
[model]
path = "{model}"
context_length = 768
[tasks]
source = "harbor"
folder = "tasks"
train_count = 5
eval_count = 1
[harness]
name = "command"
script = "{tiny.DATA / "agents" / "scribe.py"}"
[rollout]
num_generations = 2
max_inflight = 1
max_staleness = 0
max_calls = 3
max_tokens = 110
[sft]
steps = 1
batch_size = 1
[train]
max_steps = {STEPS}
groups_per_step = 2
learning_rate = 1e-3
lr_scheduler = "linear"
save_steps = 1
""")
    return path


def train(run_file: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "longrein.cli.main", "train", str(run_file), "--output-dir", str(out), *more],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=ENVIRONMENT,
    )


# Training is over before it is killed where the machine is so fast; the run is not.
NEVER_ENDS = """
import sys, time
from longrein.cli import train
from longrein.cli.main import main
judge = train.judge
train.judge = lambda *arguments: time.sleep(3600) if "GRPO" in arguments else judge(*arguments)
sys.exit(main())
"""


def killed(run_file: Path, out: Path, sign: str, wait_s: float) -> None:
    """Start a run, and kill it ``wait_s`` after ``sign`` has appeared in its directory."""
    command = [sys.executable, "-c", NEVER_ENDS, "train", str(run_file), "--output-dir", str(out)]
    with (out.parent / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT)
    try:
        deadline_s = time.monotonic() + 300
        while not (out / sign).exists():
            assert process.poll() is None, (out.parent / "log").read_text()
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        time.sleep(wait_s)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def steps_of(out: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def made(out: Path) -> dict[str, list[object]]:
    """What each group's rollouts sampled and got: where it differs, so does the model."""
    return {
        group.group_id: [
            (rollout.status, rollout.score.reward, [call.completion.token_ids.tolist() for call in rollout.trace.calls],
             [call.completion.logprobs.tobytes() for call in rollout.trace.calls])
            for rollout in group.rollouts
        ]
        for group in read_groups(out)
    }  # fmt: skip


def test_a_killed_run_goes_on_and_ends_as_if_nothing_had_happened(run_file: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    done = train(run_file, whole)
    assert done.returncode == 0, done.stdout + done.stderr
    wait_s = random.SystemRandom().uniform(0, 1.0)
    killed(run_file, out, "checkpoints/checkpoint-1", wait_s)
    reports = {path.name: path.read_bytes() for path in out.glob("eval-*.json")}
    assert set(reports) == {"eval-base.json", "eval-warm-start.json"}
    resumed = train(run_file, out, "--resume")
    where = f"killed {wait_s:.3f} s after the first checkpoint\n{resumed.stdout}{resumed.stderr}"
    assert resumed.returncode == 0, where

    taken, planned = (read_checkpoint(checkpoints(folder / "checkpoints")[-1]).note.taken for folder in (out, whole))
    assert taken == planned, where
    on_disk, wanted = made(out), made(whole)
    differ = [(on_disk.get(name), wanted[name]) for name in taken if on_disk.get(name) != wanted[name]]
    assert not differ, f"{differ}\n{where}"
    for name in ("sft", "model"):
        ours, theirs = ((folder / name / "model.safetensors").read_bytes() for folder in (out, whole))
        assert ours == theirs, f"{name} differs bit by bit; {where}"
    assert steps_of(out) == steps_of(whole) == list(range(1, STEPS + 1)), where
    assert "oracle rollouts" not in resumed.stdout, "the warm start was made again"
    assert {name: (out / name).read_bytes() for name in reports} == reports, "a judgement was made again"
    written = Counter(group.group_id for group in read_groups(out))
    assert max(written.values()) == 1
    assert set(taken) <= set(written), f"a group was trained on that is not on disk; {where}"


def test_a_run_with_adapters_keeps_them_alone_and_ends_in_a_whole_model(run_file: Path, tmp_path: Path) -> None:
    """The engine takes adapters; stopped after its last checkpoint, the run makes the same model of that."""
    changes = ("--set", "train.lora.rank=4", "--set", "sft.steps=0", "--set", "train.max_steps=2", *SHORT)
    out = tmp_path / "out"
    in_this_process(run_file, out, *changes)
    weights = {path.name for path in (out / "checkpoints" / "checkpoint-2").glob("*.safetensors")}
    assert weights == {"adapter_model.safetensors"}
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert max(line["logprob_gap_max"] for line in lines if line["trained_tokens"]) < 1e-4
    trained, start = (folder_weights(folder) for folder in (out / "model", run_file.parent / "model"))
    changed = {name.split(".")[-2] for name, tensor in trained.items() if not torch.equal(tensor, start[name])}
    linear = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert changed == linear, "every linear layer but the head, which is tied"
    AutoModelForCausalLM.from_pretrained(out / "model")
    assert AutoTokenizer.from_pretrained(out / "model").chat_template == tiny.CHATML
    model = (out / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(out / "model")
    resume(run_file, out, *changes)
    assert (out / "model" / "model.safetensors").read_bytes() == model


def resume(run_file: Path, out: Path, *more: str) -> None:
    in_this_process(run_file, out, "--resume", *more)


def in_this_process(run_file: Path, out: Path, *more: str) -> None:
    parser = argparse.ArgumentParser()
    configure(parser)
    run(parser.parse_args([str(run_file), "--output-dir", str(out), *more]))


def test_without_a_run_there_is_nothing_to_resume(run_file: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"out holds no run to resume .*start it without --resume"):
        resume(run_file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("rollout.num_generations=3", "rollout.num_generations was 2 and is 3"),
        ("seed=4", "seed was 3 and is 4"),
        ("tasks.train_count=4", "tasks.train_count was 5 and is 4"),
        ("sft.learning_rate=1e-6", "sft.learning_rate was 5e-05 and is 1e-06"),
        ("train.max_steps=9", "train.max_steps was 3 and is 9"),
    ],
)
def test_another_run_file_is_refused_before_anything_starts(
    run_file: Path, tmp_path: Path, change: str, says: str
) -> None:
    out = tmp_path / "out"
    write_config(load_config(run_file, {"output_dir": str(out), "model.path": str(run_file.parent / "model")}))
    (out / "model").mkdir()
    before = sorted(out.iterdir())
    with pytest.raises(CheckpointError, match=f"what its finished work depends on:\n  {says}\nResume with"):
        resume(run_file, out, "--set", change)
    assert sorted(out.iterdir()) == before


def test_what_finished_work_does_not_depend_on_may_change(run_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_config(load_config(run_file, {"output_dir": str(out)}))
    changes = {
        "train.max_steps": 9,
        "train.learning_rate": 1e-6,
        "rollout.max_inflight": 5,
        "train.save_total_limit": 1,
    }
    check_same_run(load_config(run_file, {"output_dir": str(out), **changes}))


def test_a_damaged_or_older_configuration_is_one_error(run_file: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"config.json cannot be read: .*output_dir.*without --resume"):
        resume(run_file, tmp_path)
