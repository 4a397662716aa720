"""TRL's script for harness rollouts, on our imports: the real OpenCode against `longrein serve`."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from longrein.store import read_groups
from tests.cli.test_serve import serving
from tests.examples.coder import CONTEXT, SAYS, save_coder

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 2
ROWS = 6


def stand_in(path: Path) -> Path:
    """MBPP's columns, problems of our own."""
    row = {
        "text": "Write a function add that returns the sum of its two arguments.",
        "code": "def add(a, b):\n    return a + b",
        "test_list": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"],
        "test_setup_code": "",
        "challenge_test_list": ["assert add(2, 2) == 4"],
    }
    path.write_text("".join(json.dumps({"task_id": number, **row}) + "\n" for number in range(ROWS)))
    return path


def script(folder: Path) -> Path:
    """The example as it is, but for fewer steps and its tracker where that is not installed."""
    shutil.copy(EXAMPLES / "opencode_mbpp_parts.py", folder)
    text = (EXAMPLES / "opencode_mbpp.py").read_text()
    assert "max_steps=10" in text and 'report_to="trackio"' in text
    text = text.replace("max_steps=10", f"max_steps={STEPS}")
    if importlib.util.find_spec("trackio") is None:
        text = text.replace('report_to="trackio"', 'report_to="none"')
    path = folder / "opencode_mbpp.py"
    path.write_text(text)
    return path


def chances(server: Any, prompt: list[int]) -> list[float]:
    """What the served model would say next, one logprob each of its three sayings."""
    found: dict[str, float] = {}
    for seed in range(40):
        body = {"prompt": prompt, "max_tokens": 1, "logprobs": 0, "seed": seed}
        choice = server.post("/v1/completions", body)["choices"][0]
        found[choice["logprobs"]["tokens"][0]] = choice["logprobs"]["token_logprobs"][0]
    return [found[saying] for saying in SAYS]


@pytest.mark.agents
def test_the_script_trains_on_the_embedded_engine(tmp_path: Path) -> None:
    model = save_coder(tmp_path / "model")
    run_file = tmp_path / "run.toml"
    run_file.write_text(f'output_dir = "served"\n[model]\npath = "model"\ncontext_length = {CONTEXT}\n')
    environment = {
        **os.environ,
        "MODEL": str(model),
        "MBPP": str(stand_in(tmp_path / "mbpp.jsonl")),
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "HF_HUB_OFFLINE": "1",
    }
    (tmp_path / ".agents").symlink_to(Path(".agents").resolve())
    with serving(run_file) as server:
        asked = {"messages": [{"role": "user", "content": "x"}]}
        prompt = server.post("/tokenize", asked)["tokens"]
        before = chances(server, prompt)
        assert sum(math.exp(value) for value in before) > 0.9
        ran = subprocess.run(
            [sys.executable, str(script(tmp_path))],
            cwd=tmp_path,
            env={**environment, "VLLM_URL": server.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout[-4000:]
        after = chances(server, prompt)
        assert server.get("/weight_info") == {"weight_version": str(STEPS)}
    assert after != before, "the served weights are the trained ones"
    groups = list(read_groups(tmp_path / "runs" / "rollouts"))
    assert len(groups) >= STEPS
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert {rollout.score.reward for rollout in rollouts} == {0.0, 1.0}, "some wrote it right, some did not"
    assert any(len(set(group.advantages)) > 1 for group in groups)
    assert "step 1 · " in ran.stdout and SAYS[2] in ran.stdout, "completions are printed"
    if importlib.util.find_spec("trackio") is not None:
        assert list((tmp_path / "trackio").rglob("opencode-mbpp*")), "steps are tracked under the script's project"
