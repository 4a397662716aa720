"""``longrein train`` under the launchers: one run, whose training is shared."""

# transformers is partly untyped:
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from transformers import AutoModelForCausalLM

from longrein.store import read_groups
from tests import tiny
from tests.cli.test_train import write_run

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "longrein"]
FSDP2 = ["--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no", "--use_fsdp"]
ACCELERATE = [
    *[sys.executable, "-m", "accelerate.commands.launch", *FSDP2, "--fsdp_version=2"],
    *["--fsdp_auto_wrap_policy=TRANSFORMER_BASED_WRAP", "-m", "longrein"],
]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def started(launcher: list[str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*launcher, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )


def ours(out: Path) -> list[psutil.Process]:
    """Processes that know of this test's folder, by their arguments or where they are."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if any(str(out.parent) in word for word in [*process.cmdline(), process.cwd()]):
                found.append(process)
        except psutil.Error:
            continue
    return found


def soon_gone(out: Path) -> bool:
    """Whether nothing of the run is left; what is dying has a minute."""
    until_s = time.monotonic() + 60
    while ours(out) and time.monotonic() < until_s:
        time.sleep(0.2)
    return not ours(out)


@pytest.mark.agents
@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate-fsdp2"])
def test_one_run_on_two_ranks(tmp_path: Path, launcher: list[str]) -> None:
    model, out = tiny.save_model(tmp_path / "model", "llama"), tmp_path / "out"
    run = started(launcher, "train", str(write_run(tmp_path, model, more="save_steps = 1")))
    told, errors = run.communicate(timeout=400)
    assert run.returncode == 0, told + errors
    assert told.count("GRPO took") == told.count("s in all") == 1
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    groups = list(read_groups(out))
    assert len({group.group_id for group in groups}) == len(groups) >= 4
    for folder in ("sft", "model"):
        AutoModelForCausalLM.from_pretrained(out / folder)
    assert (out / "checkpoints" / "checkpoint-2" / "rng_state_1.pth").is_file()
    assert soon_gone(out)


@pytest.mark.agents
def test_a_rank_that_is_killed_ends_the_run_and_leaves_nothing(tmp_path: Path) -> None:
    model, out = tiny.save_model(tmp_path / "model", "llama"), tmp_path / "out"
    run = started(TORCHRUN, "train", str(write_run(tmp_path, model, max_steps="50", more="save_steps = 1")))
    deadline_s = time.monotonic() + 300
    while not (out / "checkpoints" / "checkpoint-1").is_dir():
        assert run.poll() is None and time.monotonic() < deadline_s
        time.sleep(0.2)
    ranks = [child for child in psutil.Process(run.pid).children() if "longrein" in child.cmdline()]
    follower = next(rank for rank in ranks if rank.environ()["RANK"] == "1")
    os.kill(follower.pid, signal.SIGKILL)
    told, errors = run.communicate(timeout=200)
    assert run.returncode != 0, told
    assert "rank      : 1" in errors and "Signal 9" in errors
    assert soon_gone(out)
    assert list(read_groups(out))


@pytest.mark.agents
def test_a_warm_start_alone_is_shared_too_and_judging_is_not(tmp_path: Path) -> None:
    model, out = tiny.save_model(tmp_path / "model", "llama"), tmp_path / "out"
    run = started(TORCHRUN, "sft", str(write_run(tmp_path, model)))
    told, errors = run.communicate(timeout=200)
    assert run.returncode == 0, told + errors
    assert told.count("saved") == 1
    AutoModelForCausalLM.from_pretrained(out / "sft")
    judged = started(TORCHRUN, "eval", str(tmp_path / "run.toml"))
    _, errors = judged.communicate(timeout=200)
    assert judged.returncode != 0
    assert "runs in one process; start it without a launcher" in errors


@pytest.mark.agents
def test_rollouts_that_ranks_cannot_share_are_refused_at_once(tmp_path: Path) -> None:
    model = tiny.save_model(tmp_path / "model", "llama")
    launcher = [word.replace("=2", "=3") for word in TORCHRUN]
    run = started(launcher, "train", str(write_run(tmp_path, model)))
    _, errors = run.communicate(timeout=120)
    assert run.returncode != 0
    assert "train.groups_per_step * rollout.num_generations is 4, which 3 ranks cannot share" in errors
    assert not (tmp_path / "out").exists()
