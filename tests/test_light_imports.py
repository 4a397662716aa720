"""A machine that only runs sessions never loads torch, nor OpenEnv."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import longrein
import longrein.rollout.process, longrein.rollout.evaluate, longrein.rollout.worker, longrein.engines.local.client
import longrein.sessions.agent, longrein.tasks.source, longrein.harnesses.opencode, longrein.store, longrein.rows
import longrein.engines.render, longrein.rollout.openenv_agents, longrein.rollout.tool_loop
print(sorted({"torch", "accelerate", "openenv"} & sys.modules.keys()))
"""


def test_what_makes_rollouts_imports_neither_torch_nor_openenv() -> None:
    """transformers imports torch by itself when it loads a tokenizer where torch is installed; we never ask it to."""
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"
