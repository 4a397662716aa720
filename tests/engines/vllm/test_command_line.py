"""``longrein train`` with a vLLM server that the run starts itself, and that is killed in the middle of it."""

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
from tests.engines.vllm import rig
from tests.ports import free_port

pytestmark = pytest.mark.vllm
REPO = Path(__file__).parents[3]
STEPS = 6
"""After the second the server is killed; so many more are there to be made, however late that is noticed."""


def write_run(folder: Path, model: Path, url: str) -> Path:
    env = ", ".join(f"{name} = {json.dumps(value)}" for name, value in (rig.ENVIRONMENT | rig.WEIGHT_ROUTES).items())
    text = f"""
output_dir = "out"
[model]
path = "{model}"
context_length = {rig.CONTEXT}
[tasks]
families = ["write_number"]
train_count = 6
eval_count = 2
[harness]
name = "command"
script = "{REPO / "examples" / "bash_agent.py"}"
[rollout]
num_generations = 4
max_inflight = 4
max_tokens = 110
max_calls = 3
max_staleness = 1
# Rewards that a random model gets unequally: it ends its turn early now and then.
overlong_max_tokens = 110
overlong_cache_tokens = 100
[sft]
steps = 1
batch_size = 2
[train]
max_steps = {STEPS}
groups_per_step = 1
learning_rate = 1e-3
equal_groups = "count"
[train.lora]
rank = 4
[engine]
kind = "vllm"
urls = ["{url}"]
weight_sync = "lora"
command = {json.dumps(rig.COMMAND)}
env = {{ {env} }}
"""
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_a_run_starts_its_server_and_survives_kill_9_of_it(tmp_path: Path) -> None:
    """With adapters as what trains: a server that is started again needs base and adapter back."""
    url = f"http://127.0.0.1:{free_port()}"
    run_file = write_run(tmp_path, rig.save_model(tmp_path / "model"), url)
    out = tmp_path / "out"
    run = subprocess.Popen(
        [sys.executable, "-m", "longrein.cli.main", "train", str(run_file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    killed = 0
    try:
        while run.poll() is None and not killed:
            if (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").read_text().count("\n") >= 2:
                killed = rig.pid_of(url)
                os.kill(killed, signal.SIGKILL)
            time.sleep(0.1)
        said = run.communicate(timeout=900)[0]
    finally:
        run.kill()
    log = (out / "engine-0.log").read_text(errors="replace")
    assert run.returncode == 0, said + log[-3000:]
    assert killed
    assert log.count("Application startup complete") == 2
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    fresh = [line for line in lines if line["staleness_max"] == 0 and "logprob_gap_max" in line]
    assert fresh, "no step trained at lag 0"
    assert max(line["logprob_gap_max"] for line in fresh) < 1e-4
    for words in ("base:", "warm start:", "GRPO:", "gain:"):
        assert words in said
    versions = {
        call.completion.max_policy_version
        for group in read_groups(out)
        for rollout in group.rollouts
        for call in rollout.trace.calls
    }
    # Which ones lie between depends on who was faster. One from after the kill proves that it got its weights back.
    assert 0 in versions and max(versions) >= STEPS - 2
    assert not (out / "engine-weights").exists()
    left = [process.pid for process in psutil.process_iter(["cmdline"]) if url.rpartition(":")[2] in cmdline(process)]
    assert left == []


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.info["cmdline"] or []
    except psutil.Error:
        return []
