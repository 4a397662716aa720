"""The command line as a user runs it: whole runs of tiny real models, mistakes, and Ctrl-C."""

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

from longrein.store import read_groups
from tests import tiny

REPO = Path(__file__).parents[2]


def write_run(folder: Path, model: Path, **changes: str) -> Path:
    """A run file of seconds: two steps of two groups of two, with a warm start and a judgement."""
    text = f"""
output_dir = "out"
[model]
path = "{model}"
context_length = 1024
[tasks]
families = ["write_number"]
train_count = 6
eval_count = 2
[harness]
name = "command"
script = "{REPO / "examples" / "bash_agent.py"}"
[rollout]
num_generations = 2
max_inflight = 4
max_tokens = 110
max_calls = 3
max_staleness = 1
{changes.get("rollout", "")}
[sft]
steps = {changes.get("sft_steps", "1")}
batch_size = 2
[train]
max_steps = {changes.get("max_steps", "2")}
groups_per_step = 2
learning_rate = 1e-4
equal_groups = "count"
{changes.get("more", "")}
"""
    path = folder / "run.toml"
    path.write_text(text)
    return path


def longrein(*arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "longrein.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )


def test_a_whole_run_judges_warms_up_trains_and_judges_again(tmp_path: Path) -> None:
    model = tiny.save_model(tmp_path / "model", "llama")
    result = longrein("train", str(write_run(tmp_path, model)))
    assert result.returncode == 0, result.stdout + result.stderr
    out = tmp_path / "out"
    for label in ("base", "warm-start", "grpo"):
        report = json.loads((out / f"eval-{label}.json").read_text())
        assert len(report["rewards"]) == 2
    for words in ("base:", "warm start:", "GRPO:", "gain:", "2/2"):
        assert words in result.stdout
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    for key in (
        "reward",
        "staleness_mean",
        "staleness_max",
        "sampled_tokens_per_s",
        "count/completions_over_swap",
        "inflight",
    ):
        assert key in lines[-1], f"{key} missing of {sorted(lines[-1])}"
    assert json.loads((out / "config.json").read_text())["train"]["max_steps"] == 2
    assert (out / "reward_curve.png").stat().st_size > 1000
    assert len(list(read_groups(out / "sft-demonstrations"))) == 2
    assert len(list(read_groups(out / "eval-base"))) == 2
    groups = list(read_groups(out))
    assert len(groups) >= 4
    assert all(rollout.trace.calls for group in groups for rollout in group.rollouts)

    from transformers import AutoModelForCausalLM, AutoTokenizer

    warm = AutoModelForCausalLM.from_pretrained(out / "sft")
    start = AutoModelForCausalLM.from_pretrained(model)
    assert any((a != b).any() for a, b in zip(warm.parameters(), start.parameters(), strict=True))
    assert AutoModelForCausalLM.from_pretrained(out / "model")
    assert AutoTokenizer.from_pretrained(out / "model").chat_template


def test_the_same_command_line_trains_another_family_with_its_own_template(tmp_path: Path) -> None:
    write_run(tmp_path, tmp_path / "absent", sft_steps="0", max_steps="1")
    other = tiny.save_model(tmp_path / "other", "qwen2")
    result = longrein(
        "train",
        str(tmp_path / "run.toml"),
        "--model",
        str(other),
        "--output-dir",
        str(tmp_path / "elsewhere"),
        "--set",
        "tasks.eval_count=0",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    saved = json.loads((tmp_path / "elsewhere" / "model" / "config.json").read_text())
    assert saved["model_type"] == "qwen2"


def test_eval_and_sft_stand_alone(tmp_path: Path) -> None:
    model = tiny.save_model(tmp_path / "model", "llama")
    path = write_run(tmp_path, model, more="[eval]\nsamples = 2\npass_at = [1, 2]")
    warm = longrein("sft", str(path))
    assert warm.returncode == 0, warm.stdout + warm.stderr
    judged = longrein("eval", str(path), "--model", str(tmp_path / "out" / "sft"))
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "pass@2" in judged.stdout
    assert "95 % CI" in judged.stdout


def test_no_improvement_is_exit_code_1_when_improvement_is_demanded(tmp_path: Path) -> None:
    model = tiny.save_model(tmp_path / "model", "llama")
    path = write_run(tmp_path, model, sft_steps="0", max_steps="1", more="[eval]\nrequire_improvement = true")
    result = longrein("train", str(path))
    assert result.returncode == 1, result.stdout + result.stderr
    assert "no improvement is shown" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "harness.name=nonesuch"], "harness.name = 'nonesuch': unknown harness; known: command, opencode"),
        (["--set", "tasks.families=['nonesuch']"], "no task family is named 'nonesuch'"),
        (["--set", "rollout.num_generations=0"], "rollout.num_generations = 0"),
        (["--set", "train.max_steps"], "must be KEY=VALUE"),
        (["--model", "no/such-model"], "model.path = 'no/such-model'"),
    ],
)
def test_mistakes_are_one_message_before_anything_starts(tmp_path: Path, arguments: list[str], said: str) -> None:
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    path = write_run(tmp_path, tmp_path / "model")
    result = longrein("train", str(path), *arguments)
    assert result.returncode == 1
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.alone
@pytest.mark.parametrize("moment", ["at once", "engine", "training"])
def test_ctrl_c_at_any_moment_leaves_nothing_running(tmp_path: Path, moment: str) -> None:
    """Exit within 5 s (more on a busy machine), nothing left running, run directory readable."""
    model = tiny.save_model(tmp_path / "model", "llama")
    path = write_run(tmp_path, model, sft_steps="0", max_steps="500", more="save_steps = 1")
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "longrein.cli.main", "train", str(path), "--set", "tasks.eval_count=0"],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        _wait_for(process, moment, tmp_path / "out")
        family = psutil.Process(process.pid).children(recursive=True)
        started_s = time.monotonic()
        # A terminal sends it to the whole foreground group.
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait(timeout=60)
        took_s = time.monotonic() - started_s
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    log_text = (tmp_path / "log").read_text()
    assert code != 0
    assert took_s < 20.0, log_text
    _gone, alive = psutil.wait_procs(family, timeout=20.0)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE], log_text
    if moment == "training":
        assert code == 130
        assert "Traceback" not in log_text, log_text
        assert list(read_groups(tmp_path / "out"))
        for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines():
            json.loads(line)


def _wait_for(process: subprocess.Popen[bytes], moment: str, out: Path) -> None:
    deadline_s = time.monotonic() + 300
    while time.monotonic() < deadline_s:
        assert process.poll() is None, "the run ended by itself"
        if moment == "at once":
            time.sleep(1.5)
            return
        if moment == "engine" and psutil.Process(process.pid).children():
            return
        metrics = out / "metrics.jsonl"
        if moment == "training" and metrics.exists() and metrics.read_text().count("\n") >= 2:
            return
        time.sleep(0.1)
    raise AssertionError(f"never reached: {moment}")
